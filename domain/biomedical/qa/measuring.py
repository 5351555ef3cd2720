"""Questions in the word pieces of a model, and which of them a training in its usual windows would leave out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bertrelay.backbone import load_tokenizer, model_folder, read_network_config
from bertrelay.layout import read_layout
from domain.biomedical.qa.model import MAX_TOKENS, usual_stride
from domain.biomedical.qa.questions import Question
from domain.biomedical.qa.subwords import Cutter, Flags, Golds, faults_in_learning
from domain.biomedical.windows import Integers


class Measured(NamedTuple):
    """Lengths in pieces: of questions, (questions,), of their answers, (answers,), and of their contexts, (questions,).

    faults: which questions cannot be learnt from, by reason, (questions,).
    """

    questions: Integers
    answers: Integers
    contexts: Integers
    faults: Mapping[str, Flags]


@dataclass(frozen=True)
class Measure:
    """Cuts questions as a training would that is given no `max_tokens` and no `stride`."""

    cutter: Cutter
    max_tokens: int
    stride: int

    def __call__(self, questions: Sequence[Question]) -> Measured:
        pieces = self.cutter([each.question for each in questions], [each.context for each in questions])
        golds = Golds.of(questions, pieces)
        faults = faults_in_learning(questions, pieces, golds, self.max_tokens, self.stride)
        contexts = pieces.contexts.lengths[pieces.context_of]
        return Measured(pieces.questions.lengths, golds.ends - golds.firsts, contexts, faults)


def measure_of(model: str) -> Measure:
    """The measure of a model folder or hub id, of which the tokenizer and the configuration are read."""
    folder = model_folder(model)
    layout = read_layout(folder)
    transformer = folder / layout.transformer_folder
    config = read_network_config(transformer)
    size = min(MAX_TOKENS, (config and config.max_position_embeddings) or MAX_TOKENS)
    return Measure(Cutter(load_tokenizer(transformer, layout.lower_case)), size, usual_stride(size))
