"""kvplane inside a Python process: a recorder beside an engine's publisher, recovery, and frames."""

from ._native import Recorder, RecoveryServer, Snapshot, __version__, decode, encode, serve_recovery
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
    "Recorder",
    "RecoveryServer",
    "Snapshot",
    "__version__",
    "decode",
    "encode",
    "serve_recovery",
]
