"""kvplane inside a Python process: a recorder beside an engine's publisher, recovery, and frames."""

from ._native import __version__
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    DecodeError,
    Error,
    InternalError,
    OrderError,
)

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ClosedError",
    "DecodeError",
    "Error",
    "InternalError",
    "OrderError",
    "__version__",
]
