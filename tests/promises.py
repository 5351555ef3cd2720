"""Writes docs/promises.md from the marks of tests: `python tests/promises.py`.

`@pytest.mark.promise("A lost worker is replaced", about="cluster")` above a test makes a row of the table of `cluster`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs/promises.md"
HEADINGS = {
    "resume": "Resume is exact",
    "processes": "Processes do not matter",
    "waiting": "Nothing waits for the device, and memory is bounded",
    "complete": "Nothing incomplete is taken for complete",
    "skip": "Stages are skipped, and only when nothing changed",
    "cluster": "A cluster computes the same",
    "privacy": "Clinical text stays put",
    "loading": "Loading a model runs no code",
    "errors": "Errors say what was expected",
    "counted": "What is dropped is counted; what is not measured is absent",
    "exact": "Results are those of the method",
    "elsewhere": "Models are the same in other libraries",
    "serving": "The server answers exactly, and only those who may ask",
    "docs": "The documentation runs as written",
}
START = """# Promises

Each promise of BertRelay stands here with the test that holds it. `python tests/promises.py` writes this page from the
tests' marks.

    .venv/bin/python -m pytest -m "" TEST      # runs one of them, also where it is slow
"""


END = """
`make slow` runs the slow ones. [benchmarks.md](benchmarks.md) has what was measured.
"""


def marked(tree: ast.AST, path: str) -> Iterator[tuple[str, str, str]]:
    """Key of the heading, promise and pytest's name of each marked test in a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from marked(node, f"{path}::{node.name}")
        elif isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                    (promise,), (about,) = mark.args, mark.keywords
                    yield ast.literal_eval(about.value), ast.literal_eval(promise), f"{path}::{node.name}"


def page() -> str:
    """Markdown with a table of promises for each heading, in the order of the tests' files."""
    tables = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text("utf-8")
        if "mark.promise(" in source:
            for about, promise, test in marked(ast.parse(source), path.relative_to(TESTS.parent).as_posix()):
                tables[about].append(f"| {promise} | `{test}` |")
    if unknown := tables.keys() - HEADINGS.keys():
        raise ValueError(f"promises about {sorted(unknown)}: expected one of {', '.join(HEADINGS)}")
    sections = [
        "\n".join([f"## {heading}", "", "| promise | test |", "|---|---|", *tables[about]])
        for about, heading in HEADINGS.items()
    ]
    return "\n".join([START, "\n\n".join(sections), END])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
