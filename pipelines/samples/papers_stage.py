"""The stage `samples.papers`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.papers import write_papers
from pipelines.samples.settings import PaperSettings


def run(settings: PaperSettings, context: StageContext) -> Metrics:
    """Writes made-up abstracts into the stage's output; how many, as `documents/papers`."""
    counts = write_papers(context.output, settings.seed, settings.documents) if context.process_group.is_main else {}
    return {f"documents/{name.partition('.')[0]}": count for name, count in counts.items()}
