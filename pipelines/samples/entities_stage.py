"""The stage `samples.entities`."""

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.entity_files import draw_parts, write_parts
from pipelines.samples.entity_lookup import lookup_figures
from pipelines.samples.settings import EntitySettings


def run(settings: EntitySettings, context: StageContext) -> Metrics:
    """Writes made-up abstracts with their entities; how many, and as `lookup/f1` how far a list of names gets."""
    if not context.process_group.is_main:
        return {}
    parts = draw_parts(settings)
    write_parts(context.output, parts)
    lookup = lookup_figures(parts["train"], parts["test"])
    return {
        **{f"documents/{part}": len(documents) for part, documents in parts.items()},
        **{f"lookup/{name}": figure for name, figure in lookup.items()},
    }
