"""Types of the native part. Import names from ``kvplane``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union

from typing_extensions import Self, TypeAlias

BlockHash: TypeAlias = Union[int, bytes, str]
"""An int of 64 bits, with or without a sign; a digest of 16 or 32 bytes; or its hexadecimal digits."""

ExtraKey: TypeAlias = Union[str, bytes, int, tuple[str, int]]
"""An adapter's or a salt's text, a digest, a number, or a multimodal item with its offset from the block's first token."""

Payload: TypeAlias = Union[bytes, bytearray, memoryview]

__version__: str

class Recorder:
    """Records the KV-cache events of one rank inside its engine's process. Any thread may call it; no call waits for a reader."""

    def __init__(
        self,
        engine: str,
        rank: Optional[int] = None,
        block_size: Optional[int] = None,
        max_events: Optional[int] = None,
        max_bytes: Optional[int] = None,
        *,
        kind: Optional[str] = None,
        worker_id: Optional[int] = None,
        max_state_bytes: Optional[int] = None,
        from_start: bool = True,
        on_gap: Optional[str] = None,
    ) -> None: ...
    @property
    def engine(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def worker_id(self) -> int: ...
    def apply_stored(
        self,
        event_id: Optional[int],
        parent: Optional[BlockHash],
        block_hashes: Iterable[BlockHash],
        token_ids: Iterable[Union[int, tuple[int, int]]],
        *,
        block_size: Optional[int] = None,
        lora_id: Optional[int] = None,
        lora_name: Optional[str] = None,
        cache_salt: Optional[str] = None,
        medium: Optional[str] = None,
        extra_keys: Optional[Iterable[Optional[Iterable[ExtraKey]]]] = None,
        group_idx: Optional[int] = None,
        kv_cache_spec_kind: Optional[str] = None,
        kv_cache_spec_sliding_window: Optional[int] = None,
        locality: Optional[str] = None,
        ownership: Optional[str] = None,
        session_id: Optional[str] = None,
    ) -> int:
        """Blocks became resident, each the parent of the next. Returns the number."""

    def apply_removed(
        self,
        event_id: Optional[int],
        block_hashes: Iterable[BlockHash],
        *,
        medium: Optional[str] = None,
        group_idx: Optional[int] = None,
        locality: Optional[str] = None,
        ownership: Optional[str] = None,
    ) -> int:
        """Copies of blocks went away. Returns the number."""

    def apply_cleared(self, event_id: Optional[int]) -> int:
        """The engine dropped everything. Returns the number."""

    def apply_frame(self, seq: Optional[int], payload: Payload) -> int:
        """A message as the engine publishes it, with its sequence. Returns the number."""

    def get_events_json(self, start: Optional[int] = None, end: Optional[int] = None) -> str:
        """What a router is told that recovers: the JSON of ``/kv_recover``."""

    def snapshot(self) -> Snapshot:
        """The whole state at one moment. Events go on being recorded meanwhile."""

    def digest(self) -> str:
        """Digest of what is resident: two that hold the same have the same."""

    def status(self) -> dict[str, Any]:
        """Where the stream stands, what its state is worth, and what was counted."""

    def shutdown(self) -> None:
        """Lets go of everything. Calls after it raise; a second time changes nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...

class Snapshot:
    """What a recorder held at one moment. Iterating gives its blocks as dicts, parents before children."""

    @property
    def last_event_id(self) -> Optional[int]: ...
    @property
    def digest(self) -> str: ...
    @property
    def trust(self) -> str: ...
    @property
    def reasons(self) -> list[str]: ...
    @property
    def block_size(self) -> Optional[int]: ...
    def to_json(self) -> str:
        """The same as a ``TreeDump`` of ``/kv_recover``."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...

class RecoveryServer:
    """Answers ``/kv_recover`` for a recorder, from a thread of its own."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...
    def shutdown(self) -> None:
        """Answers what is being asked, then ends. A second time changes nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
        /,
    ) -> None: ...

def serve_recovery(recorder: Recorder, host: Optional[str] = None, port: Optional[int] = None) -> RecoveryServer:
    """Serves ``/kv_recover`` of a recorder. Without a host on loopback, without a port on any that is free."""

def decode(payload: Payload, /) -> dict[str, Any]:
    """The events of a published message, as dicts with the engine's own names."""

def encode(
    events: Sequence[Mapping[str, Any]],
    /,
    *,
    timestamp: float = 0.0,
    rank: Optional[int] = None,
    profile: str = "vllm-0.32",
) -> bytes:
    """The message that an engine of some release would publish."""
