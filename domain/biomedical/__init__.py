"""Biomedical NER, linking, relations and question answering, each with its place in the text."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.biomedical.documents.convert import convert_file
    from domain.biomedical.documents.formats import read_documents, write_documents
    from domain.biomedical.documents.score import score_files
    from domain.biomedical.linking.predict import EntityLinker
    from domain.biomedical.ner.check import check
    from domain.biomedical.ner.predict import EntityTagger
    from domain.biomedical.ner.predict_files import tag_dataset, tag_file
    from domain.biomedical.qa.bioasq import score_bioasq
    from domain.biomedical.qa.check import check_questions
    from domain.biomedical.qa.predict import QuestionAnswerer
    from domain.biomedical.qa.predict_bioasq import answer_bioasq
    from domain.biomedical.qa.predict_files import answer_dataset, answer_file
    from domain.biomedical.qa.question_files import read_questions, write_questions
    from domain.biomedical.relations.predict import RelationExtractor

__all__ = [
    "EntityLinker",
    "EntityTagger",
    "QuestionAnswerer",
    "RelationExtractor",
    "answer_bioasq",
    "answer_dataset",
    "answer_file",
    "check",
    "check_questions",
    "convert_file",
    "read_documents",
    "read_questions",
    "score_bioasq",
    "score_files",
    "tag_dataset",
    "tag_file",
    "write_documents",
    "write_questions",
]

__getattr__ = loader(
    __name__,
    {
        "EntityLinker": "linking.predict",
        "EntityTagger": "ner.predict",
        "QuestionAnswerer": "qa.predict",
        "RelationExtractor": "relations.predict",
        "answer_bioasq": "qa.predict_bioasq",
        "answer_dataset": "qa.predict_files",
        "answer_file": "qa.predict_files",
        "check": "ner.check",
        "check_questions": "qa.check",
        "convert_file": "documents.convert",
        "read_documents": "documents.formats",
        "read_questions": "qa.question_files",
        "score_bioasq": "qa.bioasq",
        "score_files": "documents.score",
        "tag_dataset": "ner.predict_files",
        "tag_file": "ner.predict_files",
        "write_documents": "documents.formats",
        "write_questions": "qa.question_files",
    },
)
