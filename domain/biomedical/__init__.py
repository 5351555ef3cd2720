"""BERTs in laboratories: biomedical entities, and answers with their place in the text."""

from typing import TYPE_CHECKING

from bertrelay.lazy import loader

if TYPE_CHECKING:
    from domain.biomedical.answers.answerer import QuestionAnswerer
    from domain.biomedical.answers.answering import answer_file
    from domain.biomedical.answers.checking import check_questions
    from domain.biomedical.answers.question_files import read_questions, write_questions
    from domain.biomedical.checking import check
    from domain.biomedical.entities.tagger import EntityTagger
    from domain.biomedical.entities.tagging import tag_file
    from domain.biomedical.formats import read_documents, write_documents

__all__ = [
    "EntityTagger",
    "QuestionAnswerer",
    "answer_file",
    "check",
    "check_questions",
    "read_documents",
    "read_questions",
    "tag_file",
    "write_documents",
    "write_questions",
]

__getattr__ = loader(
    __name__,
    {
        "EntityTagger": "entities.tagger",
        "QuestionAnswerer": "answers.answerer",
        "answer_file": "answers.answering",
        "check": "checking",
        "check_questions": "answers.checking",
        "read_documents": "formats",
        "read_questions": "answers.question_files",
        "tag_file": "entities.tagging",
        "write_documents": "formats",
        "write_questions": "answers.question_files",
    },
)
