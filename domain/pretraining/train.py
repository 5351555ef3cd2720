"""The stage `domain.pretrain`: a BERT goes on learning masked words and next sentences from documents of a domain."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bertrelay.files import write_json
from bertrelay.fingerprint import Digests
from bertrelay.hardware import accelerator, default_device
from bertrelay.stage import Metrics, StageContext, run_alone
from bertrelay.training import batches
from bertrelay.training.loop import Batch, train
from domain.pretraining.corpus import build_corpus
from domain.pretraining.evaluation import CRITERION, SEED, HeldOut
from domain.pretraining.items import Items, Text
from domain.pretraining.network import save_network, start_network
from domain.pretraining.objective import Pretraining, losses
from domain.pretraining.packing import pack
from domain.pretraining.pairs import draw_pairs
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import PretrainSettings


def pretrain(settings: PretrainSettings, folder: Path, cache: Path | None = None) -> Metrics:
    """The stage outside of a recipe: writes `folder/model` and returns the figures; stopped and called again, goes on.

    cache: keeps the prepared corpus, for other trainings too; `folder/cache` when there is none.
    """
    return run_alone(run, settings, folder, cache)


def run(settings: PretrainSettings, context: StageContext) -> Metrics:
    """Prepares the corpus, scores the base on held-out documents, trains it, scores it again, and writes `model/`."""
    network, tokenizer = start_network(settings, context.cache)
    with accelerator().main_process_first():
        digests = Digests(context.cache / "digests.json")
        corpus = build_corpus(
            settings.documents, tokenizer, context.cache, digests, settings.held_out_share, settings.max_rejects
        )
    sequences = Sequences(corpus, tokenizer, settings)
    held_out = None
    if corpus.held_out.any():
        items = draw_items(Text(corpus, corpus.held_out, "held-out documents"), settings, SEED, epoch=0)
        held_out = HeldOut(items, sequences, settings)
    model = Pretraining(network, settings.objectives).to(default_device())
    task = PretrainingTask(model, settings, Text(corpus, ~corpus.held_out), sequences, held_out)
    before = task.evaluate() if context.process_group.is_main else {}
    metrics = train(task, settings, context.output, context.work)
    if context.process_group.is_main:
        metrics |= {} if task.criterion else task.evaluate()
        write_json(context.output / "corpus.json", corpus.facts)
        copyfile(corpus.rejects, context.output / corpus.rejects.name)
        save_network(network, tokenizer, context.output / "model")
    return {**{f"before/{name}": value for name, value in before.items()}, **metrics}


def draw_items(text: Text, settings: PretrainSettings, seed: int, epoch: int) -> Items:
    """The items of an epoch: pairs where next sentences are learnt, else packed sentences, in every epoch the same."""
    if "nsp" in settings.objectives:
        return draw_pairs(text, settings.max_tokens, settings.short_share, seed, epoch)
    return pack(text, settings.max_tokens)


class PretrainingTask:
    """Masked words and next sentences, as the training loop asks for them."""

    def __init__(
        self,
        model: Pretraining,
        settings: PretrainSettings,
        text: Text,
        sequences: Sequences,
        held_out: HeldOut | None,
    ) -> None:
        self.model, self.settings, self.text = model, settings, text
        self.sequences, self.held_out = sequences, held_out
        self.lengths = self.padded_lengths = self._lengths
        self.criterion = CRITERION if held_out and settings.keep == "best" else None
        self._drawn: tuple[int, Items] | None = None

    def collate(self, items: batches.Items, epoch: int) -> Batch:
        return self.sequences.batch(self._items(epoch), items, self.settings.seed, epoch)

    def loss(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        told = losses(model(batch.inputs), batch.inputs)
        return {name: each.sum() for name, each in told.items()}

    def evaluate(self) -> Metrics:
        return self.held_out.figures(self.model) if self.held_out else {}

    def _lengths(self, epoch: int) -> NDArray[np.integer]:
        return self._items(epoch).lengths

    def _items(self, epoch: int) -> Items:
        """The items of `epoch`, of which the last ones asked for are kept."""
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, draw_items(self.text, self.settings, self.settings.seed, epoch)
        return self._drawn[1]
