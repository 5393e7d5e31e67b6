"""kvplane inside a Python process: a recorder beside an engine's publisher, recovery, and frames; an index and a client for routers."""

from ._native import (
    Answer,
    Change,
    Index,
    Match,
    NotCredited,
    Recorder,
    RecoveryServer,
    Snapshot,
    __version__,
    decode,
    encode,
    serve_recovery,
)
from .booking import Booking
from .client import AsyncClient, Client
from .errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    DecodeError,
    Error,
    InternalError,
    ListenError,
    OrderError,
)

__all__ = [
    "Answer",
    "ArgumentError",
    "ArgumentTypeError",
    "AsyncClient",
    "Booking",
    "Change",
    "Client",
    "ClosedError",
    "DecodeError",
    "Error",
    "Index",
    "InternalError",
    "ListenError",
    "Match",
    "NotCredited",
    "OrderError",
    "Recorder",
    "RecoveryServer",
    "Snapshot",
    "__version__",
    "decode",
    "encode",
    "serve_recovery",
]
