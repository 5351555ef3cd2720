"""Verdicts on models of clinical outcomes, entities and answers, from the metrics that their stages recorded."""

from collections.abc import Sequence

from bertrelay.evaluation.verdict import Gain, Verdict, counted, difference, gain, judge, measured
from bertrelay.stage import Metrics

FEW = 100
"""Of either outcome, or of entities or questions: with fewer in a test set its metrics are rough (Collins, Ogundimu &
Altman 2016, "Sample size considerations for the external validation of a multivariable prognostic model")."""
CHANCE = 0.5  # of an AUROC
BASELINES = {"tfidf": "TF-IDF", "note_length": "the length of the note"}
MOST = 0.5
UNCALIBRATED = "_uncalibrated"
"""In the names of metrics before a recalibration."""


def of_evaluated_outcome(metrics: Metrics) -> Verdict | None:
    """Verdict on an outcome model on other notes than those of its training, before any recalibration on them.

    As `of_outcome`, and a doubt where the interval of observed/expected has no 1 in it.
    """
    as_shipped = {name: value for name, value in metrics.items() if name != "recalibration_slope"}
    as_shipped |= {name.replace(UNCALIBRATED, ""): value for name, value in metrics.items() if UNCALIBRATED in name}
    low, high = (as_shipped.get(f"observed_expected_{end}") for end in ("low", "high"))
    doubts = []
    if low is not None and high is not None and not low <= 1 <= high:
        ratio = as_shipped["observed_expected"]
        doubts.append(f"its probabilities are too {'low' if low > 1 else 'high'} here (observed/expected {ratio:.2f})")
    return of_outcome(as_shipped, doubts)


def of_outcome(metrics: Metrics, doubts: Sequence[str] = ()) -> Verdict | None:
    """Verdict on an outcome model, against chance, baselines and the prevalence; None without metrics of a test.

    doubts: further reasons to warn.
    """
    if "auroc_macro" in metrics:
        return _of_labels(metrics)
    if "prevalence" not in metrics:
        return None
    admissions, prevalence = counted(metrics, "admissions/test"), metrics["prevalence"]
    events = None if admissions is None or prevalence is None else round(admissions * prevalence)
    gains = [gain(metrics, "auroc", "chance", CHANCE, needed=True)]
    gains += [difference(metrics, f"auroc_difference/{name}", words) for name, words in BASELINES.items()]
    gains.append(Gain("the prevalence", _gain_over_prevalence(metrics)))
    if admissions is None or events is None:
        return judge(measured(metrics, "auroc", "AUROC"), gains, doubts)
    fewest = min(events, admissions - events)
    whose = "with" if events <= admissions - events else "without"
    if fewest < FEW:
        doubts = [*doubts, f"too few to be sure: {fewest:,} test admissions {whose} the outcome"]
    auroc = measured(metrics, "auroc", "AUROC") or "No AUROC"
    return judge(f"{auroc} on {admissions:,} test admissions, {events:,} with the outcome", gains, doubts)


def _gain_over_prevalence(metrics: Metrics) -> float | None:
    """The prevalence's Brier score minus the model's.

    Without an interval: that of the score is mostly the prevalence's own, which both share.
    """
    brier, prevalence = metrics.get("brier"), metrics.get("prevalence")
    if metrics.get("recalibration_slope") == 0:  # all get the same risk
        return 0.0
    return None if brier is None or prevalence is None else prevalence * (1 - prevalence) - brier


def _of_labels(metrics: Metrics) -> Verdict:
    gains = [gain(metrics, "auroc_macro", "chance", CHANCE, needed=True)]
    gains += [
        gain(metrics, "auroc_macro", words, metrics.get(f"auroc_macro/{name}")) for name, words in BASELINES.items()
    ]
    auroc = measured(metrics, "auroc_macro", "Macro AUROC") or "No AUROC"
    labels, left_out = counted(metrics, "labels") or 0, counted(metrics, "labels_left_out") or 0
    doubts = [f"{left_out:,} of {labels:,} labels are true of no test admission or of all"] if left_out else []
    admissions = counted(metrics, "admissions/test")
    if admissions is not None and admissions < FEW:
        doubts.append(f"too few to be sure: {admissions:,} test admissions")
    return judge(
        f"{auroc} of {labels:,} labels" + (f" on {admissions:,} test admissions" if admissions else ""), gains, doubts
    )


def of_entities(metrics: Metrics) -> Verdict | None:
    """Verdict on a tagger, on test data, else on dev data of its training; None without either."""
    start = "" if "gold_entities" in metrics else "dev/"
    scores = {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}
    if "f1" not in scores:
        return None
    gold = counted(scores, "gold_entities")
    gains = [gain({**scores, "f1": scores["f1"] or 0.0}, "f1", "finding nothing", 0.0, needed=True)]
    doubts = []
    if (recall := scores.get("recall")) is not None and 0 < recall < MOST:
        doubts.append("it misses more entities than it finds")
    if (precision := scores.get("precision")) is not None and 0 < precision < MOST:
        doubts.append("most of what it finds is wrong")
    none_of = sorted(name.removeprefix("f1/") for name, value in scores.items() if _is_type(name) and value == 0)
    if none_of and scores["f1"]:
        doubts.append(f"no {', '.join(none_of)} is found rightly")
    if gold is not None and gold < FEW:
        doubts.append(f"too few to be sure: {gold:,} gold entities")
    facts = measured(scores, "f1", "F1") or "No F1"
    size = "" if gold is None else f" on {gold:,} gold entities"
    return judge(facts + size + (f"{' of' if size else ' on'} dev data" if start else ""), gains, doubts)


def _is_type(name: str) -> bool:
    return name.startswith("f1/") and not name.endswith(("_low", "_high"))


def of_answers(metrics: Metrics) -> Verdict | None:
    """Verdict on an answerer, on test data, else on dev data of its training; None without either."""
    start = "" if "scored" in metrics else "dev/"
    scores = {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}
    if scores.get("f1") is None:
        return None
    scored = counted(scores, "scored")
    gains = [gain(scores, "f1", "never giving an answer", _share_without_answer(scores), needed=True)]
    gains.append(gain(scores, "f1", "the text's first sentence as answer", scores.get("first_sentence/f1")))
    doubts = [f"too few to be sure: {scored:,} questions"] if scored is not None and scored < FEW else []
    facts = measured(scores, "f1", "F1")
    size = "" if scored is None else f" on {scored:,} questions"
    return judge(facts + size + (f"{' of' if size else ' on'} dev data" if start else ""), gains, doubts)


def _share_without_answer(scores: Metrics) -> float:
    """The fraction of questions without an answer in their text, which is the F1 of never giving one.

    The F1 of all is the mean of those with an answer and those without, in their shares.
    """
    f1, has, none = (scores.get(name) for name in ("f1", "has_answer/f1", "no_answer/f1"))
    if f1 is None or none is None:
        return 0.0
    return 1.0 if has is None else min(max((f1 - has) / (none - has), 0.0), 1.0) if none != has else 0.0
