"""Following a plane: :class:`Client`, and :class:`AsyncClient` for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _native
from .booking import Booking, details_of_prompt
from .errors import ArgumentTypeError

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncClient", "Client"]

_log = logging.getLogger("kvplane")

# How long one call waits before Python gets a chance to look at signals.
_SLICE = 0.2
# Changes that are taken at a time.
_AT_A_TIME = 256
# How long callbacks that are running may take when the client is closed.
_CALLBACKS_WITHIN = 5.0
# How often somebody who waits within asyncio looks.
_LOOK_AGAIN = 0.01

# At exit, threads of Python must not be inside of the native part: whoever is open is closed before.
_open: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_open):
        client.close()


class Client:
    """Follows a plane, keeps an exact copy of its streams, and answers from it.

    Any thread may call it. A client does not come along into a fork: make another one there.
    """

    def __init__(
        self,
        address: str,
        *,
        token: Optional[str] = None,
        ca: Union[bytes, str, os.PathLike[str], None] = None,
        engine: Optional[str] = None,
        credit: Optional[Iterable[_native.Trust]] = None,
        down_after: float = 10.0,
        max_silence: float = 2.0,
    ) -> None:
        if isinstance(ca, (str, os.PathLike)):
            ca = Path(ca).read_bytes()
        self._native = _native.Client(
            address,
            token=token,
            ca=ca,
            engine=engine,
            credit=credit,
            down_after=down_after,
            max_silence=max_silence,
        )
        self.address = address
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[_native.Change], object]] = []
        self._callback_errors = 0
        self._threads: list[threading.Thread] = []
        # Neither thread holds the client: one that is forgotten is closed by its end.
        self._run(_tell_of_link, self._native.changes(False), address)
        _open.add(self)

    def query(
        self,
        model: str,
        token_ids: Optional[Iterable[int]] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
        **details: Unpack[_native.QueryDetails],
    ) -> _native.Answer:
        """Who holds how much of a prompt, from the copy: nothing is waited for. Text and messages are tokenized by the plane first, which
        is waited for (``timeout`` seconds at most, 10 by default)."""
        if prompt is None and messages is None:
            for name, value in (("tools", tools), ("chat_template_kwargs", chat_template_kwargs)):
                if value is not None:
                    raise ArgumentTypeError(f"{name} goes with messages")
            return self._native.query(model, token_ids, **details)
        if token_ids is not None:
            raise ArgumentTypeError("token_ids and text exclude each other")
        told = self.tokenize(
            model,
            prompt=prompt,
            messages=messages,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            timeout=timeout,
        )
        if told["lora_name"] is not None and details.get("lora_name") is None and details.get("lora_id") is None:
            details["lora_name"] = told["lora_name"]
        return self._native.query(told["model"], told["token_ids"], **details)

    def tokenize(
        self,
        model: str,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        **details: Any,
    ) -> dict[str, Any]:
        """The ids that an engine computes for text or messages, as the plane has them: ``token_ids``, ``model``, ``lora_name`` where the
        model's name was an adapter's, and ``parity``: ``proven`` or ``assumed``. Takes also ``timeout``, ``add_generation_prompt`` and
        ``continue_final_message``."""
        text = details_of_prompt(prompt, messages, tools, chat_template_kwargs)
        return self._native.tokenize(model, **text, **details)

    def pick(
        self,
        model: str,
        token_ids: Optional[Iterable[int]] = None,
        *,
        prompt: Optional[str] = None,
        messages: Optional[Sequence[Mapping[str, Any]]] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        **details: Any,
    ) -> Booking:
        """Where a prompt should go, as the plane decides: waits for its answer, ``timeout`` seconds at most (10). The prompt is given as
        ``token_ids``, ``block_hashes`` with ``block_size``, text or messages; without any of them the load decides. Takes also ``session``,
        ``policy``, ``limit``, ``output_tokens``, ``exclude`` (pairs of engine and rank), ``dry_run``, ``lora_name``, ``cache_salt``."""
        text = details_of_prompt(prompt, messages, tools, chat_template_kwargs)
        return Booking(self._native, self._native.pick(model, token_ids, **text, **details))

    def on_change(self, callback: Callable[[_native.Change], object]) -> Callable[[_native.Change], object]:
        """Calls back with every change from now on, from a thread for this callback alone. Begins with where the plane and each
        of its streams stand. Returns the callback, so that it can decorate."""
        _check_callback(callback)
        changes = self._native.changes(True)
        with self._lock:
            at = len(self._callbacks)
            self._callbacks.append(callback)
        self._run(_call_back, changes, weakref.ref(self), at)
        return callback

    def changes(self) -> Iterator[_native.Change]:
        """What happens from now on, beginning with where the plane and each of its streams stand. Ends when the client is closed."""
        return _iterate(self._native.changes(True))

    def status(self) -> dict[str, Any]:
        """How the way to the plane is."""
        return {"address": self.address, **self._native.status(), "callback_errors": self._callback_errors}

    def streams(self) -> list[dict[str, Any]]:
        """The streams that are followed, and where each stands."""
        return self._native.streams()

    def wait_ready(self, timeout: Optional[float] = None) -> bool:
        """Waits until all that the plane had when it was asked is here. Says whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - time.monotonic()))
            if self._native.wait_ready(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Follows nothing any more, and waits for callbacks that are running, for a while. Calls after it raise ``ClosedError``; a
        second time changes nothing."""
        _open.discard(self)
        self._native.close()
        deadline = time.monotonic() + _CALLBACKS_WITHIN
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    _log.warning("a callback has not returned %s s after the client was closed", _CALLBACKS_WITHIN)

    @property
    def closed(self) -> bool:
        return self._native.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvplane.Client of {self.address}{', closed' if self.closed else ''}>"

    def _failed(self, callback: object) -> None:
        """A callback raised. That must not keep it from being told of the next change, nor go unnoticed."""
        with self._lock:
            self._callback_errors += 1
        _log.exception("a callback of on_change failed: %r", callback)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="kvplane-client", daemon=True)
        self._threads.append(thread)
        thread.start()


class AsyncClient:
    """The same for asyncio. What only looks into the copy is done at once; what waits lets others run meanwhile."""

    def __init__(
        self,
        address: str,
        *,
        token: Optional[str] = None,
        ca: Union[bytes, str, os.PathLike[str], None] = None,
        engine: Optional[str] = None,
        credit: Optional[Iterable[_native.Trust]] = None,
        down_after: float = 10.0,
        max_silence: float = 2.0,
    ) -> None:
        self._client = Client(
            address,
            token=token,
            ca=ca,
            engine=engine,
            credit=credit,
            down_after=down_after,
            max_silence=max_silence,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def query(self, model: str, token_ids: Optional[Iterable[int]] = None, **details: Any) -> _native.Answer:
        """Who holds how much of a prompt, from the copy: see :meth:`Client.query`."""
        if details.get("prompt") is None and details.get("messages") is None:
            return self._client.query(model, token_ids, **details)
        # The plane is waited for.
        ask = functools.partial(self._client.query, model, token_ids, **details)
        return await asyncio.get_running_loop().run_in_executor(None, ask)

    async def tokenize(self, model: str, **details: Any) -> dict[str, Any]:
        """The ids of text or messages: see :meth:`Client.tokenize`."""
        tokenize = functools.partial(self._client.tokenize, model, **details)
        return await asyncio.get_running_loop().run_in_executor(None, tokenize)

    async def pick(self, model: str, token_ids: Optional[Iterable[int]] = None, **details: Any) -> Booking:
        """Where a prompt should go: see :meth:`Client.pick`. The booking's own calls are short and wait for the plane: run them in an
        executor where that matters."""
        pick = functools.partial(self._client.pick, model, token_ids, **details)
        return await asyncio.get_running_loop().run_in_executor(None, pick)

    def on_change(self, callback: Callable[[_native.Change], object]) -> Callable[[_native.Change], object]:
        """Calls back within the running loop with every change from now on, one after the other; awaits what the callback returns
        if that can be awaited. Begins with where the plane and each of its streams stand. Returns the callback."""
        _check_callback(callback)
        task = asyncio.get_running_loop().create_task(self._call_back(self._iterate(self._client._native.changes(True)), callback))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return callback

    def changes(self) -> AsyncIterator[_native.Change]:
        """What happens from now on, beginning with where the plane and each of its streams stand. Ends when the client is closed."""
        return self._iterate(self._client._native.changes(True))

    async def _call_back(self, changes: AsyncIterator[_native.Change], callback: Callable[[_native.Change], object]) -> None:
        async for change in changes:
            try:
                returned = callback(change)
                if inspect.isawaitable(returned):
                    await returned
            except Exception:
                self._client._failed(callback)

    @staticmethod
    async def _iterate(changes: _native.Changes) -> AsyncIterator[_native.Change]:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(1, thread_name_prefix="kvplane-changes")
        try:
            while True:
                batch = await loop.run_in_executor(pool, changes.wait, _AT_A_TIME, _SLICE)
                if batch is None:
                    return
                for change in batch:
                    yield change
        finally:
            changes.close()
            pool.shutdown(wait=False)

    def status(self) -> dict[str, Any]:
        """How the way to the plane is."""
        return self._client.status()

    def streams(self) -> list[dict[str, Any]]:
        """The streams that are followed, and where each stands."""
        return self._client.streams()

    async def wait_ready(self, timeout: Optional[float] = None) -> bool:
        """Waits until all that the plane had when it was asked is here. Says whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._client._native.wait_ready(0.0):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_LOOK_AGAIN)
        return True

    async def close(self) -> None:
        """Follows nothing any more, and waits for callbacks that are running, for a while. A second time changes nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._client.close)
        waiting = self._tasks - {asyncio.current_task()}
        if waiting and (await asyncio.wait(waiting, timeout=_CALLBACKS_WITHIN))[1]:
            _log.warning("a callback has not returned %s s after the client was closed", _CALLBACKS_WITHIN)

    @property
    def closed(self) -> bool:
        return self._client.closed

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._client).replace("Client", "AsyncClient", 1)


def _iterate(changes: _native.Changes) -> Iterator[_native.Change]:
    try:
        while (batch := changes.wait(_AT_A_TIME, _SLICE)) is not None:
            yield from batch
    finally:
        changes.close()


def _tell_of_link(changes: _native.Changes, address: str) -> None:
    """Log lines: one whenever the way to the plane is another."""
    for change in _iterate(changes):
        if change.kind == "connected":
            _log.info("following the plane at %s", address)
        else:
            _log.warning("the plane at %s is not followed: %s", address, change.trouble)


def _call_back(changes: _native.Changes, owner: weakref.ref[Client], at: int) -> None:
    for change in _iterate(changes):
        client = owner()
        if client is None:
            return
        # The client has it, not this thread: a callback may refer to the client.
        callback = client._callbacks[at]
        try:
            callback(change)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # Also what would end the program or a task: this thread is neither.
            client._failed(callback)
        del client, callback


def _check_callback(callback: object) -> None:
    if not callable(callback):
        raise ArgumentTypeError(f"callback: must be callable, not {type(callback).__name__}", "callback")
