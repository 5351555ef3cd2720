"""The stage `samples.hospital`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.hospital.settings import HospitalSettings
from pipelines.samples.hospital.writing import write_hospital


def run(settings: HospitalSettings, context: StageContext) -> Metrics:
    """Writes a hospital into the stage's output; how many rows each table has, as `rows/admissions`."""
    if not context.process_group.is_main:
        return {}
    counts = write_hospital(context.output, settings)
    return {f"rows/{name.rpartition('/')[2].partition('.')[0].lower()}": n for name, n in counts.items()}
