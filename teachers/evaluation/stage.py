"""The stage `teachers.evaluate`: an encoder as it is, scored on STS sets."""

from bertrelay.data.records import Rejects
from bertrelay.stage import Metrics, StageContext
from teachers.baselines.encoders import encoder_at
from teachers.evaluation.sts import read_sts, sts_metrics
from teachers.settings import EvaluateSettings


def run(settings: EvaluateSettings, context: StageContext) -> Metrics:
    """Spearman of cosine on every set; the main process does it, as others have nothing to add."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        pairs = {name: read_sts(table, context, rejects) for name, table in settings.sts.items()}
    return sts_metrics(pairs, encoder_at(settings.model, settings.precision, context.cache))
