"""The stage `domain.ner-evaluate`: a model as it is, scored on annotated files, every gold entity of which counts."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertrelay.data.tables import Rejected
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.calibration import expected_calibration_error
from domain.biomedical.documents.conll import lines_of
from domain.biomedical.documents.tags import TokenSpan, tags_of
from domain.biomedical.ner.data import Example, of_types, read_examples, types_in
from domain.biomedical.ner.metrics import (
    KINDS,
    Pairing,
    Spans,
    confusions,
    count_entities,
    entity_metrics,
    pairings,
    which_are_right,
)
from domain.biomedical.ner.model import EntityModel, load_model
from domain.biomedical.ner.predict import decoded_blocks
from domain.biomedical.ner.settings import NerEvaluateSettings
from domain.sampling import spread_evenly
from domain.text.windows import Floats


class EntityPredictions(NamedTuple):
    """What a model finds in sentences.

    spans: of each sentence. confidences, uncalibrated: of all entities, sentence after sentence, (entities,).
    """

    spans: list[list[TokenSpan]]
    confidences: Floats
    uncalibrated: Floats


def run(settings: NerEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.tsv`, `confusions.json` and `examples.json`; the main process does it alone.

    Of sensitive data nothing is written that has its text, unless the settings ask for it.
    """
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache=context.cache)
    examples = of_types(read_examples(settings.test, only_legal=False), settings.types)
    _check_types(model, examples, settings)
    model.network.to(default_device())
    found = _predicted(model, examples, settings, precision)
    gold = [example.entities for example in examples]
    pairs = [list(pairings(*spans)) for spans in zip(gold, found.spans, strict=True)]
    confused, shown = confusions([each.tokens for each in examples], pairs), _examples(examples, gold, found, pairs)
    if context.sensitive and not settings.with_text:
        confused["mentions"], shown = [], {name: [] for name in shown}
    else:
        _write_predictions(examples, found, context)
    write_json(context.output / "confusions.json", confused)
    write_json(context.output / "examples.json", shown, compact=True)
    return {
        **_metrics(examples, gold, found, pairs),
        **{f"published_f1/{name}": value for name, value in settings.published.items()},
    }


def _check_types(model: EntityModel, examples: Sequence[Example], settings: NerEvaluateSettings) -> None:
    """Raises RequestError for types of the data that the model cannot find, and logs which others it finds."""
    known, wanted = set(model.labels.types), {*types_in(examples), *settings.types}
    if wanted - known:
        files = ", ".join(str(source.path) for source in settings.test)
        raise RequestError(
            f"test: the model in {settings.model} finds entities of the types {', '.join(sorted(known))}, and "
            f"{files} has {', '.join(sorted(wanted - known))} as well. Take a model that was trained for these, or "
            "set `types` to those that both have."
        )
    if not settings.types and known - wanted:
        log(
            f"the model also finds {', '.join(sorted(known - wanted))}, of which the data has none: each one found "
            "counts as wrong. Set `types` to leave them out."
        )


def _predicted(
    model: EntityModel, examples: Sequence[Example], settings: NerEvaluateSettings, precision: ComputePrecision
) -> EntityPredictions:
    wanted = settings.types or model.labels.types
    spans: list[list[TokenSpan]] = []
    calibrated, uncalibrated = [np.zeros(0)], [np.zeros(0)]
    options: dict[str, Any] = {"precision": precision, "batch_tokens": settings.batch_tokens}
    with progress("finding entities", len(examples), "sentences") as bar:
        for decoded in decoded_blocks(model, [example.tokens for example in examples], **options):
            found = decoded.token_spans()
            is_wanted = np.array([span.type in wanted for span in chain.from_iterable(found)], bool)
            spans += [[span for span in each if span.type in wanted] for each in found]
            calibrated.append(decoded.confidences(model.temperature)[is_wanted])
            uncalibrated.append(decoded.confidences(1.0)[is_wanted])
            bar.advance(len(found))
    return EntityPredictions(spans, np.concatenate(calibrated), np.concatenate(uncalibrated))


def _metrics(
    examples: Sequence[Example], gold: Spans, found: EntityPredictions, pairs: Sequence[Sequence[Pairing]]
) -> Metrics:
    """Strict and lenient metrics, how many entities there are of each kind, and calibration.

    Intervals are over documents, or over sentences where no documents are known.
    """
    types = sorted({*types_in(examples), *(span.type for span in chain.from_iterable(found.spans))})
    units = np.unique([example.document for example in examples], return_inverse=True)[1]
    untaggable = [example.untaggable for example in examples]
    strict = entity_metrics(count_entities(gold, untaggable, found.spans, units, types), types, with_interval)
    lenient_gold = [example.lenient_entities for example in examples]
    lenient = entity_metrics(count_entities(lenient_gold, untaggable, found.spans, units, types), [])
    kinds = Counter(pair.kind for pair in chain.from_iterable(pairs))
    kinds["missed"] += sum(map(len, untaggable))
    is_right = which_are_right(gold, found.spans)
    before, after = (expected_calibration_error(each, is_right) for each in (found.uncalibrated, found.confidences))
    if before is not None and after is not None:
        log(f"calibration error of the confidences: {before:.3f}, and {after:.3f} with the temperature found on dev")
    return {
        **strict,
        **{f"{name}_lenient": value for name, value in lenient.items()},
        "gold_entities": kinds.total() - kinds["spurious"],
        **{kind: kinds[kind] for kind in KINDS},
        "sentences": len(examples),
        "predicted_entities": len(is_right),
        "ece_uncalibrated": before,
        "ece": after,
    }


def _write_predictions(examples: Sequence[Example], found: EntityPredictions, context: StageContext) -> None:
    """Token, gold tag and predicted tag in each line, and a blank line after each sentence that lines can hold."""
    left_out = 0
    with (
        atomic_write(context.output / "predictions.tsv") as building,
        building.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for example, spans in zip(examples, found.spans, strict=True):
            words = len(example.tokens)
            gold, predicted = tags_of(example.entities, words, unopened=example.unopened), tags_of(spans, words)
            try:
                file.write(lines_of(example.tokens, gold, predicted) if example.tokens else "")
            except Rejected:
                left_out += 1
    if left_out:
        log(f"predictions.tsv: left out {left_out:,} sentences that no lines can hold; the score counts them")


def _examples(
    examples: Sequence[Example], gold: Spans, found: EntityPredictions, pairs: Sequence[Sequence[Pairing]]
) -> dict[str, list[dict[str, object]]]:
    """Sentences with entities, spread evenly over the data: all of them right, and some of them wrong."""
    confidences = iter(found.confidences.tolist())
    predicted = [[(*span, next(confidences)) for span in spans] for spans in found.spans]
    shown: dict[str, list[dict[str, object]]] = {"right": [], "wrong": []}
    for each, wanted, spans, compared in zip(examples, gold, predicted, pairs, strict=True):
        if kinds := {pair.kind for pair in compared}:
            example: dict[str, object] = {"tokens": each.tokens, "gold": wanted, "predicted": spans}
            shown["right" if kinds == {"right"} else "wrong"].append(example)
    return {name: spread_evenly(among) for name, among in shown.items()}
