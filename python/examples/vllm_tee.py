"""A tee in an engine's publisher thread: every batch is recorded, then published.

The publisher is made as vLLM's is: the engine puts msgspec structs into a queue, a thread of its own numbers, encodes and
sends them. Two lines are new: the recorder, and the call before the send. Recorded first, so that nobody who hears a batch
can ask for it before it is there.

    recorder = kvplane.Recorder("vllm-0", rank=0, block_size=16)
    publisher = RecordingPublisher(recorder, socket.send_multipart)
    server = kvplane.serve_recovery(recorder, port=8090)
"""

import logging
import queue
import threading
import time
from typing import Callable, List, Optional, Tuple, Union

import msgspec

import kvplane

log = logging.getLogger(__name__)


class Event(msgspec.Struct, array_like=False, omit_defaults=True, gc=False, tag=True):
    """The base of vLLM's events: maps with a `type`."""


class BlockStored(Event):
    block_hashes: List[Union[int, bytes]]
    parent_block_hash: Optional[Union[int, bytes]]
    token_ids: List[int]
    block_size: int
    lora_id: Optional[int] = None
    medium: Optional[str] = None
    lora_name: Optional[str] = None


class BlockRemoved(Event):
    block_hashes: List[Union[int, bytes]]
    medium: Optional[str] = None


class AllBlocksCleared(Event):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: List[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


class RecordingPublisher:
    """Publishes batches in order from a thread of its own, and records each before it is sent."""

    def __init__(
        self, recorder: kvplane.Recorder, send: Callable[[List[bytes]], object], topic: bytes = b"", room: int = 100_000
    ) -> None:
        self.dropped = 0
        self._recorder = recorder
        self._send = send
        self._topic = topic
        self._next = 0
        self._queue: "queue.Queue[Optional[Tuple[int, EventBatch]]]" = queue.Queue(maxsize=room)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, *events: Union[BlockStored, BlockRemoved, AllBlocksCleared]) -> None:
        """Called by the engine's scheduler, by one thread: never waits."""
        seq, self._next = self._next, self._next + 1
        try:
            self._queue.put_nowait((seq, EventBatch(time.time(), list(events), self._recorder.rank)))
        except queue.Full:
            # Its number is used up: the recorder and every subscriber see the gap, and say so.
            self.dropped += 1

    def shutdown(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        for seq, batch in iter(self._queue.get, None):
            payload = encoder.encode(batch)
            try:
                self._recorder.apply_frame(seq, payload)
            except Exception as error:
                # The engine goes on. What the recorder has not heard is a gap to it, and its answers say so.
                log.warning("batch %d is not recorded: %r", seq, error)
            self._send([self._topic, seq.to_bytes(8, "big"), payload])
