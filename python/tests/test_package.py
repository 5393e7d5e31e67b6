"""What is installed: one wheel for every CPython, with types."""

import importlib.metadata
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
    instance = exception("what", "truncated") if name == "DecodeError" else exception("what")
    assert str(instance) == "what"
    assert instance.code == instance.code.lower() != ""
