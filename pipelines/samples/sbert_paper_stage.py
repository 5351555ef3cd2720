"""The stage `samples.sbert-paper`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.sbert_paper import write_sbert_paper
from pipelines.samples.settings import SbertPaperSettings


def run(settings: SbertPaperSettings, context: StageContext) -> Metrics:
    """Writes the files into the stage's output; how many of them and how many lines."""
    counts = write_sbert_paper(context.output, settings) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}
