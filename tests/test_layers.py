"""The packages are layers, and so are the modules and folders in them: an import only points down."""

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BELOW = {
    "bertrelay": set(),
    "teachers": {"bertrelay"},
    "students": {"bertrelay", "teachers"},
    "domain": {"bertrelay"},
    "pipelines": {"bertrelay", "teachers", "students", "domain"},
}
MODULES = sorted(path.relative_to(ROOT) for layer in BELOW for path in (ROOT / layer).rglob("*.py"))
BENCHMARKS = sorted(path.relative_to(ROOT) for path in (ROOT / "benchmarks").rglob("*.py"))


def imported(tree, package):
    """(line, module) of every import in `tree`, nested ones and `import_module("…")` too; `package` is where `.` is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = [node.module] if node.module else []
            yield from ((node.lineno, ".".join([*above, *module, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield from ((node.lineno, name.value) for name in node.args if isinstance(name, ast.Constant))


def wrong_imports(source, path):
    """The imports in the module at `path` that point up or sideways."""
    layer = path.parts[0]
    forbidden = (BELOW.keys() | {"tests", "benchmarks"}) - BELOW[layer] - {layer}
    imports = imported(ast.parse(source), list(path.parent.parts))
    return [f"{path}:{line} imports {module}" for line, module in imports if module.split(".")[0] in forbidden]


def test_no_import_points_up_or_sideways():
    assert {path.parts[0] for path in MODULES} == BELOW.keys()
    assert [fault for path in MODULES for fault in wrong_imports((ROOT / path).read_text("utf-8"), path)] == []


@pytest.mark.parametrize(
    ("path", "source", "faults"),
    [
        ("bertrelay/model/encoder.py", "def f():\n    from pipelines.report.page import write_report", 1),
        ("bertrelay/model/encoder.py", "if TYPE_CHECKING:\n    import students.distill.start as start", 1),
        ("bertrelay/model/encoder.py", "importlib.import_module('domain.terms')", 1),
        ("teachers/evaluation/sts.py", "from ...students import build", 1),
        ("students/distill/start.py", "import numpy\nfrom teachers.settings import X\nfrom . import corpus", 0),
    ],
)
def test_a_planted_upward_import_is_found_and_one_that_points_down_is_none(path, source, faults):
    assert len(wrong_imports(source, Path(path))) == faults


NAMES_THE_PAPER = {Path("pipelines/registry.py"), Path("teachers/pairs/rerank.py")}
"""Modules that load parts of `teachers/sbert_paper` by their names: stages, `bertrelay evaluate`, its pair scorer."""


def test_no_module_outside_the_folder_of_the_sbert_paper_imports_it():
    paper = "teachers.sbert_paper"
    outside = [path for path in MODULES if Path("teachers/sbert_paper") not in path.parents]
    sources = {path: (ROOT / path).read_text("utf-8") for path in outside}
    importing = [
        f"{path}:{line}"
        for path, source in sources.items()
        for line, module in imported(ast.parse(source), list(path.parent.parts))
        if f"{module}.".startswith(f"{paper}.")
    ]
    assert importing == []
    assert {path for path, source in sources.items() if paper in source} == NAMES_THE_PAPER


def import_graph(sources):
    """Module → the modules it imports, from path → source."""
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in sources}
    graph = {name: set() for name in names}
    for name, path in names.items():
        for _, target in imported(ast.parse(sources[path]), list(path.parent.parts)):
            while target and target not in names:  # the last part is a class or function, or all is another library
                target = target.rpartition(".")[0]
            graph[name] |= {target} - {name, ""}
    return graph


def folder_graphs(graph):
    """Folder → the import graph of its modules and its subfolders, a subfolder being one node."""
    graphs = defaultdict(lambda: defaultdict(set))
    for name, targets in graph.items():
        for target in targets:
            ours, theirs = name.split("."), target.split(".")
            depth = len([*takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))])
            if depth:
                graphs[".".join(ours[:depth])][".".join(ours[: depth + 1])].add(".".join(theirs[: depth + 1]))
    return graphs


def circles(graph):
    """The sets of nodes that all reach each other, as large as they can be."""
    reached = {}
    for start in graph:
        reached[start], waiting = set(), [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - reached[start]
            reached[start] |= new
            waiting += new
    in_circles = [node for node in graph if node in reached[node]]
    return {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in in_circles}


def all_circles(sources):
    graph = import_graph(sources)
    return circles(graph).union(*map(circles, folder_graphs(graph).values()))


def test_no_modules_and_no_folders_import_each_other_in_a_circle():
    sources = {path: (ROOT / path).read_text("utf-8") for path in MODULES + BENCHMARKS}
    assert [sorted(circle) for circle in all_circles(sources)] == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"p/a.py": "import p.b", "p/b.py": "def f():\n    from p.a import name"}, ["p.a p.b"]),
        (
            {
                "p/a.py": "from . import b",
                "p/b.py": "if TYPE_CHECKING:\n    from p.c import C",
                "p/c.py": "import_module('p.a')",
            },
            ["p.a p.b p.c"],
        ),
        ({"p/__init__.py": "from p.a import A", "p/a.py": "from p import A"}, ["p p.a"]),
        ({"p/x/a.py": "import p.y.b", "p/y/b.py": "", "p/y/c.py": "import p.x.d", "p/x/d.py": ""}, ["p.x p.y"]),
        ({"p/q/x/a.py": "import p.q.b", "p/q/b.py": "import p.q.x.d", "p/q/x/d.py": ""}, ["p.q.b p.q.x"]),
        ({"p/a.py": "import p.b, p.c", "p/b.py": "import p.c", "p/c.py": "import json"}, []),
    ],
)
def test_a_planted_circle_is_found_and_a_tree_has_none(sources, expected):
    planted = all_circles({Path(path): source for path, source in sources.items()})
    assert sorted(" ".join(sorted(circle)) for circle in planted) == expected


def test_every_package_is_installed_typed_and_every_module_is_in_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = {".".join(path.parent.parts) for path in MODULES if path.name == "__init__.py"}
    assert sorted(project["packages"]) == sorted(packages)
    assert {".".join(path.parent.parts) for path in MODULES} == packages
    assert project["package-data"]["*"] == ["py.typed"]
    assert [layer for layer in BELOW if not (ROOT / layer / "py.typed").is_file()] == []


def test_neither_torch_nor_transformers_is_loaded_by_the_command_line_or_settings():
    modules = [".".join(path.with_suffix("").parts) for path in MODULES if "settings" in path.stem]
    code = (
        "import importlib, sys\n"
        f"for name in {['pipelines.cli', *modules]}:\n"
        "    importlib.import_module(name)\n"
        "    assert not {'torch', 'transformers', 'duckdb', 'datasketch'} & sys.modules.keys(), name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
