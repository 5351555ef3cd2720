"""Sample data of the project's own: sentences written from meanings, in five languages. Entry: `write_samples`."""

from pipelines.samples.writing import Sizes, write_samples

__all__ = ["Sizes", "write_samples"]
