"""Decisions of a plane: :class:`Booking`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from . import _native

__all__ = ["Booking"]


class Booking:
    """Where a prompt should go, and the place that was booked for it there.

    Until the first token its uncached tokens count as waiting at the first endpoint; until the end its request counts as running. As a
    context manager it is ended by the block: finished, or aborted where the block raises.
    """

    def __init__(self, native: _native.Client, picked: dict[str, Any]) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._first_token_ms: Optional[float] = None
        self._over = False
        self.picked = picked
        """The whole answer, with the names of ``POST /v1/pick``."""
        self.account: Optional[dict[str, Any]] = None
        """What the receipt says, once it was reported what was delivered."""

    @property
    def id(self) -> Optional[str]:
        """The receipt; None of a dry run."""
        found: Optional[str] = self.picked["id"]
        return found

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """The best first."""
        found: list[dict[str, Any]] = self.picked["endpoints"]
        return found

    @property
    def engine(self) -> str:
        """The engine of the best endpoint."""
        found: str = self.endpoints[0]["engine"]
        return found

    @property
    def rank(self) -> int:
        """Its rank."""
        found: int = self.endpoints[0]["rank"]
        return found

    @property
    def cached_tokens(self) -> int:
        """What it is expected to report as cached."""
        found: int = self.endpoints[0]["cached_tokens"]
        return found

    @property
    def why(self) -> str:
        """Why the first is the first, in a word."""
        found: str = self.picked["why"]
        return found

    @property
    def over(self) -> bool:
        """Whether it was finished or aborted."""
        return self._over

    def first_token(self, *, timeout: Optional[float] = None) -> None:
        """The first token came. A second time changes nothing."""
        with self._lock:
            if self._over or self._first_token_ms is not None or self.id is None:
                return
            self._first_token_ms = (time.monotonic() - self._began) * 1000.0
        self._native.report(self.id, state="first_token", timeout=timeout)

    def finish(
        self,
        *,
        cached_tokens: Optional[int] = None,
        prompt_tokens: Optional[int] = None,
        engine: Optional[str] = None,
        rank: Optional[int] = None,
        attempts: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Optional[dict[str, Any]]:
        """The request is over. With ``cached_tokens``, as the engine's ``usage`` has them, the receipt is settled and its account returned:
        what was predicted, delivered and lost, by cause. ``engine`` and ``rank`` say who served, if not the first endpoint."""
        return self._end(
            "finish",
            cached_tokens=cached_tokens,
            prompt_tokens=prompt_tokens,
            engine=engine,
            rank=rank,
            attempts=attempts,
            first_token_ms=self._first_token_ms,
            timeout=timeout,
        )

    def abort(self, *, timeout: Optional[float] = None) -> None:
        """The request was given up: nothing was delivered, and nothing was lost."""
        self._end("abort", timeout=timeout)

    def _end(self, state: str, **details: Any) -> Optional[dict[str, Any]]:
        with self._lock:
            if self._over:
                return self.account
            self._over = True
        if self.id is None:
            return None
        account = self._native.report(self.id, state=state, **details)
        if account["settled"]:
            self.account = account
        return self.account

    def __enter__(self) -> Booking:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = ", over" if self._over else ""
        return f"<kvplane.Booking at {self.engine}/{self.rank}, {self.why}{state}>"


def details_of_prompt(
    prompt: Optional[str],
    messages: Optional[Sequence[Mapping[str, Any]]],
    tools: Optional[Sequence[Mapping[str, Any]]],
    chat_template_kwargs: Optional[Mapping[str, Any]],
) -> dict[str, Optional[str]]:
    """What is JSON in the request, as JSON."""

    def as_json(value: object) -> Optional[str]:
        return None if value is None else json.dumps(value, ensure_ascii=False)

    return {
        "prompt": prompt,
        "messages": as_json(messages),
        "tools": as_json(tools),
        "chat_template_kwargs": as_json(chat_template_kwargs),
    }
