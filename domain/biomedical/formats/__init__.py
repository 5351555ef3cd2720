"""Annotated documents in the formats of the field, read and written; docs/formats.md tells what each one holds."""

from domain.biomedical.formats.conll import Columns, read_sentences, write_sentences
from domain.biomedical.formats.front import (
    FORMATS,
    FormatName,
    document_items,
    format_of,
    read_documents,
    write_documents,
    writing,
)

__all__ = [
    "FORMATS",
    "Columns",
    "FormatName",
    "document_items",
    "format_of",
    "read_documents",
    "read_sentences",
    "write_documents",
    "write_sentences",
    "writing",
]
