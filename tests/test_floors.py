"""The house stands in floors, and an import only ever points down."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
BELOW = {
    "bertrelay": set(),
    "teachers": {"bertrelay"},
    "students": {"bertrelay", "teachers"},
    "domain": {"bertrelay"},
    "pipelines": {"bertrelay", "teachers", "students", "domain"},
}
MODULES = sorted(path for floor in BELOW for path in (HOUSE / floor).rglob("*.py"))
LIGHT = [
    "pipelines.cli",
    *(".".join(p.relative_to(HOUSE).with_suffix("").parts) for p in MODULES if "settings" in p.stem),
]


def imported(tree, package):
    """(line, module) of every import in `tree`, nested ones and `import_module("…")` too; `package` is where `.` is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = [node.module] if node.module else []
            yield from ((node.lineno, ".".join([*above, *module, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from ((node.lineno, name.value) for name in node.args if isinstance(name, ast.Constant))


def called(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def wrong_imports(source, path):
    """What in the module at `path` (relative to the house) points up a floor or sideways."""
    floor = path.parts[0]
    forbidden = (BELOW.keys() | {"tests", "benchmarks"}) - BELOW[floor] - {floor}
    found = imported(ast.parse(source), list(path.parent.parts))
    return [f"{path}:{line} imports {module}" for line, module in found if module.split(".")[0] in forbidden]


def test_no_import_points_up_a_floor_or_sideways():
    assert {path.relative_to(HOUSE).parts[0] for path in MODULES} == BELOW.keys()
    assert [
        fault for path in MODULES for fault in wrong_imports(path.read_text("utf-8"), path.relative_to(HOUSE))
    ] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("bertrelay/encoder.py", "import teachers"),
        ("bertrelay/encoder.py", "def f():\n    from pipelines.report.page import write_report"),
        ("bertrelay/encoder.py", "if TYPE_CHECKING:\n    import students.build as build"),
        ("bertrelay/encoder.py", "importlib.import_module('domain.terms')"),
        ("teachers/evaluation/sts.py", "from ...students import build"),
        ("students/build.py", "from domain.terms import read"),
        ("domain/terms.py", "from teachers import train"),
        ("pipelines/runner.py", "from tests import helpers"),
    ],
)
def test_a_planted_upward_import_is_found(path, source):
    assert len(wrong_imports(source, Path(path))) == 1


def test_imports_that_point_down_are_no_fault():
    source = "import numpy\nfrom teachers.settings import X\nfrom . import corpus\nfrom bertrelay import records"
    assert wrong_imports(source, Path("students/build.py")) == []


def test_pyproject_lists_every_package_and_no_other():
    listed = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    standing = {".".join(path.parent.relative_to(HOUSE).parts) for path in MODULES if path.name == "__init__.py"}
    assert sorted(listed) == sorted(standing)


def test_every_module_lies_in_a_package():
    assert [path for path in MODULES if not (path.parent / "__init__.py").is_file()] == []


@pytest.mark.parametrize("module", LIGHT)
def test_neither_torch_nor_transformers_is_loaded_by(module):
    loaded = f"import sys, {module}; print(*sorted({{'torch', 'transformers'}} & sys.modules.keys()))"
    answer = subprocess.run([sys.executable, "-c", loaded], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""
