"""Sample data of the project's own: sentences written from meanings, in five languages, and made-up papers."""

from pipelines.samples.papers import write_papers
from pipelines.samples.writing import write_samples

__all__ = ["write_papers", "write_samples"]
