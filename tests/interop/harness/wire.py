"""vLLM's event structs, version by version, as its own `kv_events.py` declares them for msgspec."""

from dataclasses import dataclass
from typing import Any

import msgspec

Hash = int | bytes

# Field, type, and whether it has the default None; in the order of declaration.
STORED = [
    ("block_hashes", list[Hash], False),
    ("parent_block_hash", Hash | None, False),
    ("token_ids", list[int], False),
    ("block_size", int, False),
    ("lora_id", int | None, False),
    ("medium", str | None, False),
    ("lora_name", str | None, False),
    ("extra_keys", list[Any] | None, True),
    ("group_idx", int | None, True),
    ("kv_cache_spec_kind", str | None, True),
    ("kv_cache_spec_sliding_window", int | None, True),
    ("locality", str | None, True),
    ("ownership", str | None, True),
    ("session_id", str | None, True),
]
REMOVED = [
    ("block_hashes", list[Hash], False),
    ("medium", str | None, False),
    ("group_idx", int | None, True),
    ("locality", str | None, True),
    ("ownership", str | None, True),
]


@dataclass(frozen=True)
class Version:
    """One vLLM, seen from its wire."""

    name: str
    Stored: type
    Removed: type
    Cleared: type
    Batch: type
    has_rank: bool
    arrays: bool
    replay_has_topic: bool

    def __str__(self):
        return self.name

    def stored(self, hashes, parent, tokens, block_size, **more):
        """A store; fields that this version does not have must not be given."""
        values = {"medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention", "lora_id": None, "lora_name": None}
        known = self.Stored.__struct_fields__
        assert not more.keys() - set(known), f"{self} has no {more.keys() - set(known)}"
        values.update(more)
        values = {name: value for name, value in values.items() if name in known}
        return self.Stored(
            block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=block_size, **values
        )

    def removed(self, hashes, **more):
        values = {"medium": "GPU", "group_idx": 0}
        values.update(more)
        known = self.Removed.__struct_fields__
        return self.Removed(block_hashes=hashes, **{name: value for name, value in values.items() if name in known})

    def cleared(self):
        return self.Cleared()

    def batch(self, ts, events, rank=0):
        return self.Batch(ts, events, rank) if self.has_rank else self.Batch(ts, events)

    def encode(self, ts, events, rank=0):
        return msgspec.msgpack.encode(self.batch(ts, events, rank))

    def decode(self, payload):
        """Decodes with the structs of this version: anything that they do not expect is an error."""
        return msgspec.msgpack.decode(payload, type=self.Batch)


def _version(name, stored, removed, arrays=False, has_rank=True, replay_has_topic=False):
    options = {"array_like": arrays, "omit_defaults": True, "gc": False, "tag": True}
    def struct(struct_name, fields):
        declared = [(field, kind, None) if default else (field, kind) for field, kind, default in fields]
        return msgspec.defstruct(struct_name, declared, **options)
    stored_type = struct("BlockStored", STORED[:stored])
    removed_type = struct("BlockRemoved", REMOVED[:removed])
    cleared_type = struct("AllBlocksCleared", [])
    batch = [("ts", float), ("events", list[stored_type | removed_type | cleared_type])]
    if has_rank:
        batch.append(("data_parallel_rank", int | None, None))
    batch_type = msgspec.defstruct("KVEventBatch", batch, array_like=True, omit_defaults=True, gc=False)
    return Version(name, stored_type, removed_type, cleared_type, batch_type, has_rank, arrays, replay_has_topic)


VERSIONS = {
    version.name: version
    for version in [
        _version("vllm-0.9.0", 5, 1, arrays=True, has_rank=False),
        _version("vllm-0.10.2", 6, 2, arrays=True),
        _version("vllm-0.14", 7, 2, arrays=True),
        _version("vllm-0.17", 8, 2, arrays=True),
        _version("vllm-0.20", 9, 3, arrays=True),
        _version("vllm-0.22", 11, 3, arrays=True),
        _version("vllm-0.24", 11, 3),
        _version("vllm-0.26", 12, 4, replay_has_topic=True),
        _version("vllm-0.29", 13, 5, replay_has_topic=True),
        _version("vllm-0.32", 14, 5, replay_has_topic=True),
    ]
}
OLDEST, LAST_ARRAYS, FIRST_MAPS, NEWEST = (VERSIONS[f"vllm-{v}"] for v in ("0.9.0", "0.22", "0.24", "0.32"))


def bits(value):
    """The 64 bits that identify a block: integers as they are, of digests the last eight bytes."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    return value & (2**64 - 1)
