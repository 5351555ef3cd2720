"""The stage `domain.ner-evaluate`: scores a trained model on annotated files, of which every gold entity counts."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from bertrelay.data.tables import Rejected
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import with_interval
from bertrelay.files import atomic_write, write_json
from bertrelay.progress import log, progress
from bertrelay.report import identity, write_report
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.calibration import expected_calibration_error
from domain.biomedical.documents.conll import lines_of
from domain.biomedical.documents.tags import TokenSpan, tags_of
from domain.biomedical.ner.data import Example, of_types, read_examples, types_in
from domain.biomedical.ner.metrics import (
    KINDS,
    Pairing,
    confusions,
    count_entities,
    entity_metrics,
    metrics_of_corpora,
    pairings,
    which_are_right,
    which_are_scored,
)
from domain.biomedical.ner.model import EntityModel, load_model
from domain.biomedical.ner.predict import decoded_blocks
from domain.biomedical.ner.report import evaluation_report
from domain.biomedical.ner.settings import NerEvaluateSettings
from domain.sampling import spread_evenly
from domain.text.windows import Floats


class EntityPredictions(NamedTuple):
    """The entities that a model finds in sentences.

    spans: of each sentence. confidences, uncalibrated: of all entities, sentence after sentence, (entities,).
    """

    spans: list[list[TokenSpan]]
    confidences: Floats
    uncalibrated: Floats


def run(settings: NerEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `predictions.tsv`, `confusions.json` and `examples.json`, only in the main process.

    No text of sensitive data is written, unless the settings ask for it.
    """
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    model = load_model(settings.model, cache=context.cache)
    examples = of_types(read_examples(settings.test, only_legal=False), settings.types)
    _check_types(model, examples, settings)
    model.network.to(default_device())
    predictions = _predictions(model, examples, settings, precision)
    gold = [example.entities for example in examples]
    pairs = [list(pairings(*spans)) for spans in zip(gold, predictions.spans, strict=True)]
    confused = confusions([example.tokens for example in examples], pairs)
    shown = _shown_examples(examples, predictions, pairs)
    if context.sensitive and not settings.with_text:
        confused["mentions"], shown = [], {name: [] for name in shown}
    else:
        _write_predictions(examples, predictions, context)
    write_json(context.output / "confusions.json", confused)
    write_json(context.output / "examples.json", shown, compact=True)
    corpora = list(dict.fromkeys(source.corpus for source in settings.test if source.corpus))
    metrics: Metrics = {
        **_metrics(examples, predictions, pairs, corpora),
        **{f"published_f1/{name}": value for name, value in settings.published.items()},
    }
    same_data = {
        corpus: identity("f1", [(one.tokens, one.entities) for one in examples if corpus in ("", one.corpus)])
        for corpus in corpora or [""]
    }
    report = evaluation_report(metrics, confused, shown, same_data)
    write_report(report, context, with_text=settings.with_text)
    return metrics


def _check_types(model: EntityModel, examples: Sequence[Example], settings: NerEvaluateSettings) -> None:
    """Raises RequestError for types of the data that the model cannot find; logs the others that it finds."""
    model_types, types = set(model.labels.types), {*types_in(examples), *settings.types}
    if types - model_types:
        files = ", ".join(str(source.path) for source in settings.test)
        raise RequestError(
            f"test: the model in {settings.model} finds entities of the types {', '.join(sorted(model_types))}, and "
            f"{files} has {', '.join(sorted(types - model_types))} as well. Take a model that was trained for these, "
            "or set `types` to those that both have."
        )
    others = {name for name in model_types - types if any(example.annotates(name) for example in examples)}
    if not settings.types and others:
        log(
            f"the model also finds {', '.join(sorted(others))}, of which the data has none: each one "
            "found counts as wrong. Set `types` to leave them out."
        )


def _predictions(
    model: EntityModel, examples: Sequence[Example], settings: NerEvaluateSettings, precision: ComputePrecision
) -> EntityPredictions:
    types = frozenset(settings.types or model.labels.types)
    scored = [one._replace(annotated=types if one.annotated is None else types & one.annotated) for one in examples]
    spans: list[list[TokenSpan]] = []
    calibrated, uncalibrated = [np.zeros(0)], [np.zeros(0)]
    sentences = [example.tokens for example in examples]
    with progress("finding entities", len(examples), "sentences") as bar:
        for block in decoded_blocks(model, sentences, precision=precision, batch_tokens=settings.batch_tokens):
            block_spans = block.token_spans()
            of_block = scored[len(spans) : len(spans) + len(block_spans)]
            is_scored = which_are_scored(of_block, block_spans)
            spans += [example.scored(listed) for example, listed in zip(of_block, block_spans, strict=True)]
            calibrated.append(block.confidences(model.temperature)[is_scored])
            uncalibrated.append(block.confidences(1.0)[is_scored])
            bar.advance(len(block_spans))
    return EntityPredictions(spans, np.concatenate(calibrated), np.concatenate(uncalibrated))


def _metrics(
    examples: Sequence[Example],
    predictions: EntityPredictions,
    pairs: Sequence[Sequence[Pairing]],
    corpora: Sequence[str],
) -> Metrics:
    """Strict and lenient metrics, also of each of `corpora`, the number of entities of each kind, and calibration.

    Intervals are over documents, or over sentences where no documents are known.
    """
    types = sorted({*types_in(examples), *(span.type for span in chain.from_iterable(predictions.spans))})
    units = np.unique([example.document for example in examples], return_inverse=True)[1]
    untaggable = [example.untaggable for example in examples]
    gold, lenient_gold = ([getattr(e, name) for e in examples] for name in ("entities", "lenient_entities"))
    counts, lenient_counts = (
        count_entities(spans, untaggable, predictions.spans, units, types) for spans in (gold, lenient_gold)
    )
    lenient = entity_metrics(lenient_counts, [])
    corpus_of = [example.corpus for example in examples]
    of_corpora = metrics_of_corpora(corpora, corpus_of, gold, untaggable, predictions.spans, units, with_interval)
    kinds = Counter(pair.kind for pair in chain.from_iterable(pairs))
    kinds["missed"] += sum(map(len, untaggable))
    is_right = which_are_right(gold, predictions.spans)
    before, after = (
        expected_calibration_error(confidences, is_right)
        for confidences in (predictions.uncalibrated, predictions.confidences)
    )
    if before is not None and after is not None:
        log(f"calibration error of the confidences: {before:.3f}, and {after:.3f} with the temperature found on dev")
    return {
        **entity_metrics(counts, types, with_interval),
        **{f"{name}_lenient": value for name, value in lenient.items()},
        **of_corpora,
        "gold_entities": kinds.total() - kinds["spurious"],
        **{kind: kinds[kind] for kind in KINDS},
        "sentences": len(examples),
        "predicted_entities": len(is_right),
        "ece_uncalibrated": before,
        "ece": after,
    }


def _write_predictions(examples: Sequence[Example], predictions: EntityPredictions, context: StageContext) -> None:
    """Writes token, gold and predicted tag in each line, and a blank line after each sentence that CoNLL can hold."""
    left_out = 0
    with (
        atomic_write(context.output / "predictions.tsv") as building,
        building.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for example, spans in zip(examples, predictions.spans, strict=True):
            words = len(example.tokens)
            gold, predicted = tags_of(example.entities, words, unopened=example.unopened), tags_of(spans, words)
            try:
                file.write(lines_of(example.tokens, gold, predicted) if example.tokens else "")
            except Rejected:
                left_out += 1
    if left_out:
        log(f"predictions.tsv: left out {left_out:,} sentences that no lines can hold; the score counts them")


def _shown_examples(
    examples: Sequence[Example], predictions: EntityPredictions, pairs: Sequence[Sequence[Pairing]]
) -> dict[str, list[dict[str, object]]]:
    """Sentences with entities for the report, spread evenly over the data: all entities right, or some wrong."""
    confidences = iter(predictions.confidences.tolist())
    shown: dict[str, list[dict[str, object]]] = {"right": [], "wrong": []}
    for example, spans, listed in zip(examples, predictions.spans, pairs, strict=True):
        predicted = [(*span, next(confidences)) for span in spans]
        if kinds := {pair.kind for pair in listed}:
            row: dict[str, object] = {"tokens": example.tokens, "gold": example.entities, "predicted": predicted}
            shown["right" if kinds == {"right"} else "wrong"].append(row)
    return {name: spread_evenly(rows) for name, rows in shown.items()}
