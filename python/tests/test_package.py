"""What is installed: one wheel for every CPython, with types."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import kvplane


def test_the_wheel_has_one_library_for_every_cpython_and_types():
    assert kvplane.__version__ == importlib.metadata.version("kvplane")
    package = Path(kvplane.__file__).parent
    assert {path.name for path in package.glob("_native*")} == {"_native.abi3.so", "_native.pyi"}
    assert (package / "py.typed").exists()


@pytest.mark.parametrize("name", [name for name in kvplane.__all__ if name.endswith("Error")])
def test_every_exception_is_an_error_with_a_code(name):
    exception = getattr(kvplane, name)
    assert issubclass(exception, kvplane.Error)
    further = {"DecodeError": ("truncated",), "ListenError": (98, "taken")}
    instance = exception("what", *further.get(name, ()))
    assert str(instance) == "what"
    assert instance.code == instance.code.lower() != ""


def evaluated(tree):
    """All that runs when a module is imported or called: everything but annotations, where those are left alone."""
    left_alone = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if not (left_alone and name in ("annotation", "returns")):
                waiting += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST)]


def test_everything_runs_on_the_oldest_python_that_is_promised():
    python = Path(__file__).resolve().parents[1]
    files = [*python.glob("kvplane/*.py"), *python.glob("examples/*.py")]
    assert len(files) >= 6
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        for node in evaluated(tree):
            union = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
            assert not union, f"{file.name}:{node.lineno}: types joined by | need Python 3.10 where they are evaluated"
    # And what modules, functions and keywords are used.
    vermin = Path(sys.executable).with_name("vermin")
    checked = subprocess.run([vermin, "--target=3.9-", "--no-tips", "--violations", *files], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
