"""The stage `teachers.evaluate`: an encoder scored on STS sets without training."""

from functools import partial

from bertrelay.data.records import Rejects
from bertrelay.evaluation.encode import encoded_once, metrics_at
from bertrelay.report import StageReport, write_report
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.encoders import encoder_at
from teachers.evaluation.settings import StsSettings
from teachers.evaluation.sts import read_sts, sts_metrics
from teachers.report import sts_headline


def run_sts(settings: StsSettings, context: StageContext) -> Metrics:
    """Scores the encoder by Spearman of cosine on every set; only the main process computes it."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        pairs = {name: read_sts(table, context, rejects) for name, table in settings.sts.items()}
    sentences = [sentence for part in pairs.values() for sentence in part.sentences]
    encode = encoded_once(encoder_at(settings.model, precision, context.cache), sentences)
    score = partial(sts_metrics, pairs)
    metrics = score(encode) | metrics_at(settings.dimensions, score, encode)
    headline = sts_headline(metrics, {name: part.rows() for name, part in pairs.items()})
    write_report(StageReport(headlines=[headline] if headline else []), context)
    return metrics
