"""The stubs name what the native part has, and the package and its examples use it as they say."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import kvplane
from kvplane import _native

PYTHON = Path(__file__).resolve().parents[1]


def test_examples_and_package_are_typed():
    files = [*(PYTHON / "examples").glob("*.py"), *(PYTHON / "kvplane").glob("*.py*")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", "/dev/null", *map(str, files)],
        capture_output=True, text=True, cwd=PYTHON,
    )
    assert checked.returncode == 0, checked.stdout


def members(names):
    return {name for name in names if not name.startswith("_")}


def test_stubs_and_native_part_have_the_same_names():
    stub = ast.parse((PYTHON / "kvplane" / "_native.pyi").read_text())
    # Type aliases and dicts are for type checkers alone.
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef) and node.name != "QueryDetails"}
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    native = {name: getattr(_native, name) for name in members(dir(_native))}
    assert classes.keys() | functions == native.keys()
    for name, node in classes.items():
        stubbed = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        assert members(stubbed) == members(dir(native[name])), name


@pytest.mark.parametrize("name", kvplane.__all__)
def test_everything_public_is_documented(name):
    assert name == "__version__" or inspect.getdoc(getattr(kvplane, name))
