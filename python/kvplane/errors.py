"""What can go wrong. Every exception of this package is an :class:`Error` with a stable ``code``."""

from __future__ import annotations

from typing import Optional

__all__ = ["ArgumentError", "ArgumentTypeError", "ClosedError", "DecodeError", "Error", "InternalError", "OrderError"]


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


class InternalError(Error):
    """A defect of kvplane. Whatever it was doing is void; the process goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "internal")
