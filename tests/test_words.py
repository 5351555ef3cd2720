"""Plain words: docstrings, names and comments of modules, read from the syntax tree, and the text of pages."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REWRITTEN = [
    *("bertrelay", "teachers", "students", "domain/text", "domain/biomedical", "domain/pretraining"),
    *("pipelines/cards", "pipelines/cli", "pipelines/run", "pipelines/serve", "tests/pipelines/cards"),
    *("tests/bertrelay", "tests/teachers", "tests/students", "tests/domain/text", "tests/domain/biomedical/documents"),
    *("tests/domain/biomedical/linking", "tests/domain/biomedical/relations"),
]
"""Folders in which every docstring, name and comment follows the rules."""
MODULES = sorted(path.relative_to(ROOT) for name in REWRITTEN for path in (ROOT / name).rglob("*.py"))
PAGES = sorted(
    path.relative_to(ROOT) for pages in ("README*.md", "CONTRIBUTING.md", "docs/*.md") for path in ROOT.glob(pages)
)

FIRST_WORDS = {"what", "how", "whether", "of", "as", "that", "when", "where", "who", "which"}
"""A docstring names a thing or begins with a verb."""
EMPTY_NAMES = {
    *("given", "found", "each", "there", "own", "known", "asked", "wanted", "kept", "how", "told", "looks", "said"),
    *("of", "place", "places"),
}
"""They name nothing in a stack trace."""
DIALECT = re.compile(
    r"\b(relay|baton|hands? on|handed on|mend(s|ed)?|slips?|goes on|went on|gone on|ledger|fates?|sieve|strangers?|told"
    r"|tells|made-up|what becomes of|both ways|comes? back|laborator(y|ies))\b",
    re.IGNORECASE,
)
BANNER = re.compile(r"^# [A-Z][^.]{2,60}$")
"""A comment that divides a module marks a module that was not made."""


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def comments_and_strings(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def faults(source):
    """Lists (line, what is against the rules) of a module."""
    tree = ast.parse(source)
    for line, text in docstrings(tree):
        if re.split(r"\W", text, maxsplit=1)[0].lower() in FIRST_WORDS:
            yield line, f"a docstring that begins with {text.split()[0]}"
    yield from ((line, f"the name {name}") for line, name in names(tree) if name in EMPTY_NAMES)
    for line, text in comments_and_strings(source):
        if match := DIALECT.search(text):
            yield line, f"the word {match[0]}"
    for line, text in enumerate(source.splitlines(), 1):
        if BANNER.match(text):
            yield line, f"the banner {text}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_rewritten_module_is_in_plain_words(path):
    assert [f"{path}:{line} {fault}" for line, fault in faults((ROOT / path).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_is_in_plain_words(path):
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    assert [f"{path}:{line} {text}" for line, text in enumerate(lines, 1) if DIALECT.search(text)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('def f():\n    """Whether it rains."""', "a docstring that begins with Whether"),
        ("for each in rows: pass", "the name each"),
        ("def f(given): pass", "the name given"),
        ("x = 1  # the ledger of rows", "the word ledger"),
        ("x = 1\n# Reading and writing\ny = 2", "the banner # Reading and writing"),
    ],
)
def test_a_planted_fault_is_found(source, fault):
    assert [found for _, found in faults(source)] == [fault]
    assert list(faults('def read(path):\n    """Reads a table."""\n    # Why: two readers share it.\n')) == []
