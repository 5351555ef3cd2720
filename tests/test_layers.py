"""The packages are layers: an import only points down."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

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


def test_no_import_points_up_or_sideways():
    assert {path.parts[0] for path in MODULES} == BELOW.keys()
    for path in MODULES:
        layer = path.parts[0]
        forbidden = (BELOW.keys() | {"tests", "benchmarks"}) - BELOW[layer] - {layer}
        found = imported(ast.parse((ROOT / path).read_text("utf-8")), list(path.parent.parts))
        assert [(line, module) for line, module in found if module.split(".")[0] in forbidden] == [], path


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
