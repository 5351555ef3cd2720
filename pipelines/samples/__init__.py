"""Sample data of the project's own: sentences from meanings, in five languages, made-up papers and hospitals."""

from pipelines.samples.entity_files import write_entities
from pipelines.samples.hospital import write_hospitals
from pipelines.samples.papers import write_papers
from pipelines.samples.plain_files import write_plain_files
from pipelines.samples.question_files import write_questions
from pipelines.samples.sbert_paper import write_sbert_paper
from pipelines.samples.writing import write_samples

__all__ = [
    "write_entities",
    "write_hospitals",
    "write_papers",
    "write_plain_files",
    "write_questions",
    "write_samples",
    "write_sbert_paper",
]
