"""Queries, documents and judgements of retrieval: BEIR folders, questions with entries, tables, TREC's qrels."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects, canonical_id, read, rows
from bertrelay.data.tables import ABSENT, Record, Rejected, Table
from bertrelay.errors import RequestError
from bertrelay.languages import CODE
from bertrelay.settings import InputFile
from bertrelay.stage import StageContext
from students.evaluate.settings import RetrievalTest
from students.mining.gold import read_gold
from students.mining.sentence_files import read_sentences

OPTIONAL = ("_id", "id", "title", "language")
JUDGED = ("query-id", "corpus-id")
QUERY_NAMES = {"query-id", "query_id", "query", "qid"}
"""First words of a header of judgements."""
WHOLE = re.compile(r"[+-]?\d+(\.0+)?")


class Text(NamedTuple):
    """A query or a document; the language is empty where it is unknown."""

    text: str
    language: str = ""


class RetrievalData(NamedTuple):
    """Judged queries and the documents to search.

    documents: in the order in which equal similarities are ranked.
    grades: of each query the grade of its relevant documents, all above 0, by row of `documents`.
    languages: of each query, empty where unknown.
    unanswered: number of queries without a relevant document, which are left out.
    """

    queries: list[str]
    documents: list[str]
    grades: list[dict[int, int]]
    languages: list[str]
    unanswered: int = 0

    @classmethod
    def of(
        cls,
        queries: Mapping[str, Text],
        documents: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, int]],
    ) -> Self:
        """Numbers the documents by falling id, which is how trec_eval ranks those of one score.

        judgements: grades by query and document, of which those up to 0 are not relevant.
        Raises RequestError where no query has a relevant document.
        """
        ids = sorted(documents, reverse=True)
        position = {name: row for row, name in enumerate(ids)}
        grades = {
            query: {position[name]: grade for name, grade in judgements.get(query, {}).items() if grade > 0}
            for query in queries
        }
        judged = [query for query in queries if grades[query]]
        if not judged:
            raise RequestError(
                "retrieval: expected queries with a relevant document, found none; check that the judgements have the "
                "ids of queries and documents, and grades above 0"
            )
        return cls(
            [queries[name].text for name in judged],
            [documents[name] for name in ids],
            [grades[name] for name in judged],
            [queries[name].language for name in judged],
            sum(name in judgements for name in queries) - len(judged),
        )


def read_retrieval(
    test: RetrievalTest, name: str, context: StageContext, rejects: Rejects
) -> tuple[RetrievalData, RetrievalData | None]:
    """Reads the queries, documents and judgements of `test`, and the same with its judgements `dev`.

    name: that of the set.

    Raises RequestError for files of another form, and where no query has a relevant document.
    """
    tables = [test.queries, test.corpus, test.qrels]
    if test.folder is not None:
        folder = Path(test.folder)
        if (folder / "entries.txt").is_file():
            if test.dev is not None:
                raise RequestError(f"{name}: dev: expected a folder of BEIR or tables, found questions and entries")
            return read_faq(test.folder, context, rejects), None
        names = ("queries.jsonl", "corpus.jsonl", f"qrels/{test.split}.tsv")
        if missing := [file for file in names if not (folder / file).is_file()]:
            raise RequestError(
                f"{folder}: expected queries.jsonl, corpus.jsonl and qrels/{test.split}.tsv as BEIR has them, or "
                f"questions.txt, entries.txt and gold.tsv; found no {', '.join(missing)}"
            )
        tables = [Table(path=InputFile(f"{folder}/{file}")) for file in names]
    queries_table, corpus, qrels = tables
    assert queries_table is not None and corpus is not None and qrels is not None  # as the settings check
    queries = read_texts(queries_table, context.cache, rejects, test.language or "", may_be_blank=False)
    documents = {key: text for key, (text, _) in read_texts(corpus, context.cache, rejects).items()}
    try:
        data, dev = (
            RetrievalData.of(queries, documents, read_qrels(table, queries, documents, context.cache, rejects))
            if table is not None
            else None
            for table in (qrels, test.dev)
        )
        assert data is not None
        return data, dev
    except RequestError as error:
        error.args = (f"{name}: {error}",)
        raise


def read_faq(folder: InputFile, context: StageContext, rejects: Rejects) -> RetrievalData:
    """Reads `questions.txt` and `entries.txt`, a text a line, and the lines that belong together from `gold.tsv`.

    Raises RequestError, with file and line, for a line of `gold.tsv` that names no question or no entry.
    """
    work = context.work / "faq"
    work.mkdir(parents=True, exist_ok=True)
    questions, entries = (
        read_sentences(Table(path=InputFile(f"{folder}/{name}.txt")), work / f"{name}.arrow", context.cache, rejects)
        for name in ("questions", "entries")
    )
    gold = read_gold(Table(path=InputFile(f"{folder}/gold.tsv")), questions, entries)
    answers: dict[int, dict[int, int]] = {}
    for question, entry in zip(*divmod(gold, len(entries)), strict=True):
        answers.setdefault(int(question), {})[int(entry)] = 1
    texts = questions.read(0, len(questions))
    return RetrievalData(
        [texts[row] for row in answers],
        entries.read(0, len(entries)),
        list(answers.values()),
        [""] * len(answers),
        len(texts) - len(answers),
    )


def read_texts(
    table: Table, cache: Cache | None, rejects: Rejects, language: str = "", may_be_blank: bool = True
) -> dict[str, Text]:
    """Reads texts by id: of plain lines the number of the line, of a table its column `_id` or `id`.

    A title precedes its text, with a space between them, as in BEIR. A table without the column `text` has ids and
    texts in its first two columns.
    language: of all texts; when empty that of the column `language`.
    may_be_blank: false to reject blank texts.
    """
    texts: dict[str, Text] = {}
    for row in _text_rows(table, cache):
        try:
            key, text = _text(row, language)
            if key in texts:
                raise Rejected("an id that an earlier record has")
            if not may_be_blank and not text.text.strip():
                raise Rejected("no text")
        except Rejected as fault:
            rejects.add(row.file, row.line, fault.reason, detail=fault.detail)
            continue
        texts[key] = text
        rejects.used()
    return texts


def _text_rows(table: Table, cache: Cache | None) -> Iterator[Record | Rejected]:
    """Streams rows with the values id, title, language and text."""
    if table.path is not None and table.file_format == "lines":
        for row in rows(table, (0,), cache):
            yield row if isinstance(row, Rejected) else row._replace(values=(str(row.line), "", "", *row.values))
        return
    is_delimited = table.path is not None and table.file_format in ("csv", "tsv")
    if table.columns is None and is_delimited and table.header and not _has_header(table, cache):
        table = table.model_copy(update={"header": False})
    if table.columns or not table.header:
        for row in rows(table, (0, 1), cache):
            yield row if isinstance(row, Rejected) else row._replace(values=(row.values[0], "", "", row.values[1]))
        return
    for row in rows(table, ("text",), cache, OPTIONAL):
        if isinstance(row, Rejected):
            yield row
            continue
        text, beir_id, other_id, title, language = row.values
        key = next((value for value in (beir_id, other_id) if value is not ABSENT), str(row.line))
        yield row._replace(values=(key, title, language, text))


def _has_header(table: Table, cache: Cache | None) -> bool:
    """True if the first row of a CSV or TSV names a column `text`."""
    try:
        next(iter(rows(table, ("text",), cache)), None)
    except RequestError:
        return False
    return True


def _text(row: Record | Rejected, language: str) -> tuple[str, Text]:
    """Returns the id and the text of a row. Raises Rejected for one that cannot be used."""
    if isinstance(row, Rejected):
        raise row
    key, title, of_row, text = ("" if value in (None, ABSENT) else value for value in row.values)
    if not isinstance(text, str) or not isinstance(title, str):
        raise Rejected("a text that is none")
    language = language or str(of_row)
    if language and not CODE.fullmatch(language):
        raise Rejected("a language that is no code")
    return _id(key), Text(f"{title} {text}".strip() if title else text, language)


def _id(value: Any) -> str:
    try:
        key = canonical_id(value)
    except ValueError as error:
        raise Rejected(str(error)) from None
    if not key:
        raise Rejected("no id")
    return key


def read_qrels(
    table: Table, queries: Iterable[str], documents: Iterable[str], cache: Cache | None, rejects: Rejects
) -> dict[str, dict[str, int]]:
    """Reads grades by query and document from TREC's four columns, or from query, document and perhaps grade.

    A grade that is missing is 1. Rejected are pairs whose query or document does not exist, and those judged already.
    """
    queries, documents = set(queries), set(documents)
    grades: dict[str, dict[str, int]] = {}
    for row in _judgement_rows(table, cache):
        try:
            if isinstance(row, Rejected):
                raise row
            query, document = map(_id, row.values[:2])
            grade = str(row.values[2]).strip()
            if not WHOLE.fullmatch(grade):
                raise Rejected("a grade that is no whole number")
            if query not in queries:
                raise Rejected("a judgement of a query that does not exist")
            if document not in documents:
                raise Rejected("a judgement of a document that does not exist")
            if document in grades.setdefault(query, {}):
                raise Rejected("a pair that is judged already")
        except Rejected as fault:
            rejects.add(row.file, row.line, fault.reason, detail=fault.detail)
            continue
        grades[query][document] = int(float(grade))
        rejects.used()
    return grades


def _judgement_rows(table: Table, cache: Cache | None) -> Iterator[Record | Rejected]:
    """Streams rows with the values query, document and grade."""
    is_text = table.path is not None and table.file_format in ("lines", "tsv") and table.columns is None
    if not is_text:
        for row in rows(table, JUDGED, cache, () if table.columns else ("score",)):
            if isinstance(row, Record):
                values = [1 if value is ABSENT else value for value in row.values]
                row = row._replace(values=tuple(values[:3] if len(values) > 2 else [*values, 1]))
            yield row
        return
    plain = table.model_copy(update={"format": "lines", "header": True, "quoted": False})
    for record in read(plain, (0,), cache):
        fields = re.split(r"\t" if "\t" in record.values[0] else r"\s+", record.values[0].strip())
        is_first = record.line == 1
        if fields == [""] or (is_first and (fields[0].casefold() in QUERY_NAMES or not _is_judgement(fields))):
            continue
        if len(fields) == 4:
            del fields[1]  # TREC's second column is not used
        if len(fields) not in (2, 3):
            yield Rejected("another number of fields than 2 to 4", file=record.file, line=record.line)
            continue
        yield record._replace(values=(*fields, 1)[:3])


def _is_judgement(fields: Sequence[str]) -> bool:
    """False for a header, whose last field of three or four is no number."""
    return len(fields) < 3 or WHOLE.fullmatch(fields[-1].strip()) is not None


def retrieval_data(
    queries: Mapping[str, str], documents: Mapping[str, str], judgements: Mapping[str, Mapping[str, int]]
) -> RetrievalData:
    """Checks data in memory. Raises RequestError for a judgement of a query or document that does not exist."""
    for query, grades in judgements.items():
        missing = [query] if query not in queries else [name for name in grades if name not in documents]
        if missing:
            raise RequestError(
                f"retrieval: expected judgements of existing queries and documents, found one of {len(missing)} that "
                "do not exist; check the ids"
            )
    return RetrievalData.of({key: Text(text) for key, text in queries.items()}, documents, judgements)
