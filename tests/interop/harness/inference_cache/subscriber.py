"""A subscriber as the original sidecar is: a socket, a map of hashes, and one call after the other to a server."""

import queue
import struct
import threading
import time
from dataclasses import dataclass

import grpc
import msgspec
import zmq

from ..hashing import chain, contents
from .index import CLEARED, EVICTED, T1

T2 = 2
CALL_SECONDS = 5.0
FLUSH_AT = 4096
BATCHES_WAITING = 256


class Malformed(Exception):
    """A batch that is dropped as a whole."""


@dataclass(frozen=True)
class Block:
    """What the sidecar remembers of an engine's block."""

    fingerprint: int
    tokens: int
    adapter: str

    @property
    def wire(self):
        return struct.pack(">Q", self.fingerprint)


# --- reading ----------------------------------------------------------------------------------------------------

STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"]
FIELDS = {"BlockStored": STORED, "BlockRemoved": ["block_hashes"], "AllBlocksCleared": []}


def decode(payload):
    """(timestamp, [(tag, fields)]) of a payload. One bad event spoils the batch; unknown ones are skipped."""
    try:
        batch = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise Malformed(str(error)) from None
    if not isinstance(batch, list) or len(batch) < 2:
        raise Malformed("no batch")
    return batch[0], [read for event in batch[1] if (read := _event(event)) is not None]


def _event(event):
    if isinstance(event, dict):
        tag, fields = event.get("type"), event
    elif isinstance(event, list) and event:
        tag, fields = event[0], dict(zip(FIELDS.get(event[0], []), event[1:]))
    else:
        raise Malformed("no event")
    if tag not in FIELDS:
        return None
    if tag == "BlockStored":
        for needed in ("block_hashes", "token_ids", "block_size"):
            if fields.get(needed) is None:
                raise Malformed(f"no {needed}")
        if fields["block_size"] <= 0 or any(not 0 <= token < 2**32 for token in fields["token_ids"]):
            raise Malformed("a block size or a token")
        if not isinstance(fields.get("lora_id"), int | None):
            raise Malformed("lora_id")
    return tag, fields


def key_of(hash):
    """An engine's hash as a key: bytes as they are, whole numbers as eight bytes."""
    match hash:
        case bytes():
            return hash
        case str():
            return hash.encode()
        case int():
            return struct.pack(">Q", hash & (2**64 - 1))
    raise Malformed("a hash")


class Mapper:
    """Engine's hashes to prefixes. It looks at no sequence; a parent that it does not know is taken for no parent."""

    def __init__(self, adapters=None):
        self.adapters = adapters or {}
        self.blocks = {}
        self.dropped = 0

    def map(self, payload):
        """What follows from a payload: ("add", Block), ("evict", Block) or ("clear",)."""
        at, events = decode(payload)
        for tag, fields in events:
            if tag == "BlockStored":
                yield from (("add", block, at) for block in self._stored(fields))
            elif tag == "BlockRemoved":
                for hash in fields["block_hashes"]:
                    if block := self.blocks.pop(key_of(hash), None):
                        yield "evict", block, at
            else:
                self.blocks = {}
                yield "clear", None, at

    def _stored(self, fields):
        hashes, size = [key_of(hash) for hash in fields["block_hashes"]], fields["block_size"]
        adapter = self.adapters.get(fields.get("lora_id"), "")
        told = list(contents(fields["token_ids"], size))
        if len(told) != len(hashes) or (fields.get("lora_id") is not None and not adapter):
            self.dropped += 1
            return []
        parent = fields.get("parent_block_hash")
        before = self.blocks.get(key_of(parent)) if parent is not None else None
        stored = []
        for hash, content in zip(hashes, told):
            fingerprint = content if before is None else chain_on(before.fingerprint, content)
            before = Block(fingerprint, (before.tokens if before else 0) + size, adapter)
            self.blocks[hash] = before
            stored.append(before)
        return stored


def chain_on(parent, content):
    """The prefix that goes on from a parent with one more block."""
    return list(chain([parent, content]))[-1]


# --- telling ----------------------------------------------------------------------------------------------------


class Subscriber:
    """The sidecar, running. What it could not tell is lost, and counted here (the original does not even do that)."""

    def __init__(
        self, pb, engine, server, *, replica, model, tenant, scheme="vllm", topic="", window=0.1, adapters=None,
        ignore_block_removed=False,
    ):
        self.pb = pb
        self.names = {"replica_id": replica, "model_id": model, "tenant_id": tenant}
        self.scheme, self.window, self.ignore_block_removed = scheme, window, ignore_block_removed
        self.mapper = Mapper(adapters)
        self.batches = self.lost = self.malformed = 0
        self._channel = grpc.insecure_channel(server)
        self._stub = pb.InferenceCacheStub(self._channel)
        self._pending, self._stamp = [], 0.0
        self._queue = queue.Queue(BATCHES_WAITING)
        self._running = True
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(topic.encode())
        self._socket.connect(engine)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._listen, self._report)]
        for thread in self._threads:
            thread.start()

    def close(self):
        """As on SIGTERM: stops listening, tells what is pending, and ends."""
        self._running = False
        for thread in self._threads:
            thread.join(timeout=10)
        self._context.destroy(linger=0)
        self._channel.close()

    def tell_stats(self, **stats):
        """The statistics path: an update without prefixes."""
        update = self._update(time.time())
        update.stats.CopyFrom(self.pb.ReplicaStats(replica_id=self.names["replica_id"], **stats))
        return self._send(update)

    def _listen(self):
        while self._running:
            if self._socket.poll(20):
                # The payload is the last frame. Topic and sequence are not looked at.
                self._queue.put(self._socket.recv_multipart()[-1])
        self._queue.put(None)

    def _report(self):
        flush_at = time.monotonic() + self.window
        while True:
            try:
                payload = self._queue.get(timeout=max(0.0, flush_at - time.monotonic()))
            except queue.Empty:
                self._flush()
                flush_at = time.monotonic() + self.window
                continue
            if payload is None:
                self._flush()
                return
            try:
                self._apply(list(self.mapper.map(payload)))
            except Malformed:
                self.malformed += 1
            self.batches += 1

    def _apply(self, changes):
        for what, block, at in changes:
            self._stamp = at
            if what == "add":
                self._pending.append(block)
                if len(self._pending) >= FLUSH_AT:
                    self._flush()
            elif what == "evict":
                self._flush()
                self._evict(block, at)
            else:
                self._pending = []
                self._publish(self.pb.CacheEvent(type=CLEARED, timestamp_us=int(at * 1e6), **self.names))

    def _flush(self):
        pending, self._pending = self._pending, []
        if pending and not self._send(self._update(self._stamp, pending)):
            self.lost += len(pending)

    def _evict(self, block, at):
        if self.ignore_block_removed:
            self._send(self._update(at, [block], T2))
            return
        self._publish(
            self.pb.CacheEvent(
                type=EVICTED, prefix_hash=block.wire, adapter_id=block.adapter, timestamp_us=int(at * 1e6), **self.names
            )
        )

    def _update(self, at, blocks=(), tier=T1):
        update = self.pb.CacheStateUpdate(hash_scheme=self.scheme, timestamp_us=int(at * 1e6), **self.names)
        for block in blocks:
            update.prefixes.add(prefix_hash=block.wire, token_count=block.tokens, tier=tier, adapter_id=block.adapter)
        return update

    def _send(self, update):
        """A stream of its own for one update."""
        try:
            return self._stub.ReportCacheState(iter([update]), timeout=CALL_SECONDS).accepted
        except grpc.RpcError:
            return False

    def _publish(self, event):
        try:
            self._stub.PublishEvent(event, timeout=CALL_SECONDS)
        except grpc.RpcError:
            self.lost += 1
