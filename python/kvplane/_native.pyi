"""Types of the native part. Import names from ``kvplane``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Optional, TypedDict, Union

from typing_extensions import Self, TypeAlias, Unpack

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
        from_start: Optional[bool] = None,
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
        """What ``/kv_recover`` answered at that moment: a ``TreeDump``, or why there is none."""

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

Trust: TypeAlias = Literal["exact", "lower", "unverified", "unsound"]
Continuity: TypeAlias = Literal["connecting", "recovering", "live", "down"]
Tier: TypeAlias = Literal["device", "host", "disk", "remote"]

class QueryDetails(TypedDict, total=False):
    """What a prompt is made of besides its tokens, and other ways to tell it: the fields of ``POST /v1/query``."""

    lora_name: Optional[str]
    lora_id: Optional[int]
    cache_salt: Optional[str]
    extra_keys: Optional[Iterable[Optional[Iterable[ExtraKey]]]]
    multimodal: Optional[Iterable[tuple[str, int, int]]]
    block_hashes: Optional[Iterable[int]]
    chained: Optional[bool]
    block_size: Optional[int]
    groups: Optional[bool]
    limit: Optional[int]
    min_tokens: Optional[int]
    all: Optional[bool]

class Match:
    """A stream that is credited, and how much of the prompt it holds."""

    @property
    def engine(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def reason(self) -> Optional[str]: ...
    @property
    def age_ms(self) -> Optional[int]: ...
    @property
    def block_size(self) -> Optional[int]: ...
    @property
    def blocks(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def tiers(self) -> dict[Tier, int]: ...
    @property
    def cached_tokens(self) -> Optional[int]:
        """What the engine is expected to report as cached tokens for exactly this prompt; ``None`` if hashes were given."""

    @property
    def note(self) -> Optional[str]:
        """``prompt_shorter_than_block`` if the prompt does not fill one block of the stream."""

    @property
    def main(self) -> Optional[dict[str, Any]]: ...
    @property
    def groups(self) -> Optional[list[dict[str, Any]]]: ...

class NotCredited:
    """A stream that is not credited, and why."""

    @property
    def engine(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def reason(self) -> str: ...
    @property
    def continuity(self) -> Continuity: ...
    @property
    def age_ms(self) -> Optional[int]: ...

class Answer:
    """Who holds how much of a prompt, and what that is worth."""

    @property
    def matches(self) -> tuple[Match, ...]:
        """The credited streams that hold something, most tokens first, at most ``limit`` (32). With ``all``, every credited stream."""

    @property
    def best(self) -> tuple[Match, ...]:
        """Those of them that hold the most; none when nobody holds anything."""

    @property
    def trust(self) -> Trust:
        """The weakest of all streams that could have answered, credited or not."""

    @property
    def not_credited(self) -> tuple[NotCredited, ...]:
        """The streams that are not credited, at most ``limit``."""

    @property
    def counts(self) -> dict[str, Any]:
        """How many streams could have answered, listed or not: ``holders``, ``best``, ``empty``, ``not_credited`` and so on."""

    def as_dict(self) -> dict[str, Any]:
        """The same as ``POST /v1/query`` would answer."""

class Index:
    """Who holds how much of a prompt, among recorders of this process."""

    def __init__(self, *, credit: Optional[Iterable[Trust]] = None) -> None: ...
    def add(self, recorder: Recorder, model: str) -> None:
        """Puts a recorder in, with whatever it has recorded by now. It goes on recording meanwhile."""

    def remove(self, recorder: Recorder) -> bool:
        """Takes a recorder out. Says whether it was in."""

    def query(
        self, model: str, token_ids: Optional[Iterable[int]] = None, **details: Unpack[QueryDetails]
    ) -> Answer:
        """Who holds how much of a prompt. As new as the recorders are."""

    def models(self) -> list[str]: ...

class Change:
    """Something that happened at a plane that is followed, told after the copy has it."""

    @property
    def kind(
        self,
    ) -> Literal["connected", "disconnected", "loaded", "reset", "batch", "standing", "lagged", "gone"]: ...
    @property
    def trouble(self) -> Optional[str]: ...
    @property
    def engine(self) -> Optional[str]: ...
    @property
    def rank(self) -> Optional[int]: ...
    @property
    def continuity(self) -> Optional[Continuity]: ...
    @property
    def trust(self) -> Optional[Trust]: ...
    @property
    def epoch(self) -> Optional[int]: ...
    @property
    def sequence(self) -> Optional[int]: ...
    @property
    def engine_sequence(self) -> Optional[int]: ...
    @property
    def timestamp(self) -> Optional[float]: ...
    @property
    def events(self) -> list[dict[str, Any]]:
        """What a batch did, in order."""

class Changes:
    """Changes for one reader. Not public: see ``Client.changes``."""

    def wait(self, limit: int, timeout: float) -> Optional[list[Change]]: ...
    def close(self) -> None: ...

class Client:
    """The native part of ``kvplane.Client``. Not public."""

    def __init__(
        self,
        address: str,
        *,
        token: Optional[str] = None,
        ca: Optional[bytes] = None,
        engine: Optional[str] = None,
        credit: Optional[Iterable[Trust]] = None,
        down_after: Optional[float] = None,
        max_silence: Optional[float] = None,
    ) -> None: ...
    def query(
        self, model: str, token_ids: Optional[Iterable[int]] = None, **details: Unpack[QueryDetails]
    ) -> Answer: ...
    def tokenize(self, model: str, **details: Any) -> dict[str, Any]: ...
    def pick(self, model: str, token_ids: Optional[Iterable[int]] = None, **details: Any) -> dict[str, Any]: ...
    def report(self, id: str, **details: Any) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...
    def streams(self) -> list[dict[str, Any]]: ...
    def wait_ready(self, timeout: float) -> bool: ...
    def changes(self, streams: bool) -> Changes: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

def decode(payload: Payload, /) -> dict[str, Any]:
    """The events of a published message, as dicts with the engine's own names."""

def encode(
    events: Sequence[Mapping[str, Any]],
    /,
    *,
    timestamp: Optional[float] = None,
    rank: Optional[int] = None,
    profile: Optional[str] = None,
) -> bytes:
    """The message that an engine of some release would publish."""
