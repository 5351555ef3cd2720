"""The stage `samples.write`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.settings import SampleSettings
from pipelines.samples.writing import write_samples


def run(settings: SampleSettings, context: StageContext) -> Metrics:
    """Writes the sample files into the stage's output; how many rows each part has, as `sentences/nli.train`."""
    if not context.process_group.is_main:
        return {}
    counts = write_samples(context.output, settings)
    return {f"sentences/{name.removesuffix('.gz').removesuffix('.tsv')}": n for name, n in counts.items()}
