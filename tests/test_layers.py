"""The packages are layers: an import only points down."""

import ast
import subprocess
import sys
import tomllib
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
    found = imported(ast.parse(source), list(path.parent.parts))
    return [f"{path}:{line} imports {module}" for line, module in found if module.split(".")[0] in forbidden]


def test_no_import_points_up_or_sideways():
    assert {path.parts[0] for path in MODULES} == BELOW.keys()
    assert [fault for path in MODULES for fault in wrong_imports((ROOT / path).read_text("utf-8"), path)] == []


@pytest.mark.parametrize(
    ("path", "source", "faults"),
    [
        ("bertrelay/model/encoder.py", "def f():\n    from pipelines.report.page import write_report", 1),
        ("bertrelay/model/encoder.py", "if TYPE_CHECKING:\n    import students.build as build", 1),
        ("bertrelay/model/encoder.py", "importlib.import_module('domain.terms')", 1),
        ("teachers/evaluation/sts.py", "from ...students import build", 1),
        ("students/build.py", "import numpy\nfrom teachers.settings import X\nfrom . import corpus", 0),
    ],
)
def test_a_planted_upward_import_is_found_and_one_that_points_down_is_none(path, source, faults):
    assert len(wrong_imports(source, Path(path))) == faults


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
        "    assert not {'torch', 'transformers'} & sys.modules.keys(), name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
