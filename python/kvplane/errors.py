"""What can go wrong. Every exception of this package is an :class:`Error` with a stable ``code``.

Not of this package: the interpreter's ``TypeError`` for a call with too few or too many arguments or an unknown keyword, and the
``OSError`` of a file that cannot be read.
"""

from __future__ import annotations

import os
from typing import Optional

__all__ = ["ArgumentError", "ArgumentTypeError", "ClosedError", "DecodeError", "Error", "InternalError", "ListenError", "OrderError"]


class Error(Exception):
    """The base of all. ``code`` is stable and the same word that kvplane answers with over HTTP; the message is for people."""

    code: str

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message)
        self.code = code


class ArgumentError(Error, ValueError):
    """An argument has a value that it cannot have. ``argument`` names it."""

    argument: Optional[str]

    def __init__(self, message: str, argument: Optional[str] = None) -> None:
        super().__init__(message, "invalid_argument")
        self.argument = argument


class ArgumentTypeError(Error, TypeError):
    """An argument has a type that it cannot have. ``argument`` names it."""

    argument: Optional[str]

    def __init__(self, message: str, argument: Optional[str] = None) -> None:
        super().__init__(message, "invalid_argument")
        self.argument = argument


class DecodeError(Error, ValueError):
    """A frame cannot be decoded. ``reason`` is a stable word: ``truncated``, ``not_msgpack``, ``not_a_batch``, ``trailing_bytes``."""

    reason: str

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, "invalid_argument")
        self.reason = reason


class OrderError(Error):
    """A number that was used before, or one below it: numbers rise."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "conflict")


class ClosedError(Error):
    """The object was shut down."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "shutting_down")


class ListenError(Error, OSError):
    """Nobody can be served at that address. ``errno`` and ``strerror`` are the system's; ``errno`` is None where it gave none."""

    def __init__(self, message: str, errno: Optional[int], strerror: str) -> None:
        super().__init__(message, "unavailable")
        self.errno = errno
        # In the system's words alone, as any other OSError has them.
        self.strerror = strerror if errno is None else os.strerror(errno)

    def __str__(self) -> str:
        return str(self.args[0])


class InternalError(Error):
    """A defect of kvplane. Whatever it was doing is void; the process goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "internal")
