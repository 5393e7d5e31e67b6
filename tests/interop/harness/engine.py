"""An engine's publisher in Python: one thread, a PUB socket, and a ROUTER that is served between publishes."""

import queue
import threading
import time
from collections import deque
from concurrent.futures import Future

import zmq

from .wire import NEWEST

END = b"\xff" * 8


class Engine:
    """Publishes as vLLM's `ZmqEventPublisher` does. Ports are the system's choice unless given."""

    def __init__(
        self,
        version=NEWEST,
        *,
        topic="",
        events=None,
        replay=None,
        has_replay=True,
        connect=False,
        buffer_steps=10_000,
        before=(),
        synchronised=False,
        ipv6=False,
        rank=0,
    ):
        self.version = version
        self.rank = rank
        self.topic = topic.encode()
        self.connects = connect
        self.has_replay = has_replay
        # XPUB hears who subscribes, so that a test without replay need not guess when it may publish.
        self.kind = zmq.XPUB if synchronised else zmq.PUB
        self.ipv6 = ipv6
        host = "[::1]" if ipv6 else "127.0.0.1"
        self.events = events or f"tcp://{host}:*"
        self.replay = replay or f"tcp://{host}:*"
        self.next_sequence = 0
        self.ring = deque(maxlen=buffer_steps)
        self.asked = []  # the first sequence of every replay request
        self.mute = False  # replay requests are read and not answered
        self.answer = None  # another way to answer: (engine, client, start) -> None
        self.subscribers = 0
        for batch in before:
            self._record(self.version.encode(time.time(), list(batch), rank))
        self._queue = queue.Queue()
        self._running = True
        opened = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), daemon=True)
        self._thread.start()
        opened.result(timeout=10)

    # --- what tests call -------------------------------------------------------------------------------------

    def publish(self, *events, live=True, ring=True, ts=None, copies=1, rank=None):
        """Publishes one batch and returns its sequence. Without `live` nobody hears it, without `ring` nobody can ask."""
        payload = self.version.encode(time.time() if ts is None else ts, list(events), self.rank if rank is None else rank)
        return self.publish_payload(payload, live=live, ring=ring, copies=copies)

    def publish_payload(self, payload, *, live=True, ring=True, copies=1, on_the_wire=None):
        """The same for bytes. `on_the_wire` is sent live instead; the ring keeps `payload`."""

        def work():
            sequence = self._record(payload, ring)
            if live:
                for _ in range(copies):
                    self._send(sequence, payload if on_the_wire is None else on_the_wire)
            return sequence

        return self._call(work)

    def send_live(self, sequence, payload):
        """Sends a frame under any number, past the ring."""
        self._call(lambda: self._send(sequence, payload))

    def send_frames(self, *frames):
        self._call(lambda: self._pub.send_multipart(frames))

    def reconnect(self, while_away=lambda: None):
        """The same process closes and reopens its sockets, on the same ports."""

        def work():
            self._close()
            while_away()
            self._open()

        self._call(work)

    def record(self, *events):
        """Numbers a batch and keeps it in the ring. For the publisher's own thread (see `reconnect`) only."""
        return self._record(self.version.encode(time.time(), list(events), self.rank))

    def kill(self):
        """Ends the process, as far as anybody can tell."""
        if self._running:
            self._running = False
            self._thread.join(timeout=10)
            assert not self._thread.is_alive()

    def restarted(self, version=None, **options):
        """A new life on the same ports: sequences from 0, an empty cache, no word about it."""
        self.kill()
        options.setdefault("topic", self.topic.decode())
        options.setdefault("has_replay", self.has_replay)
        options.setdefault("connect", self.connects)
        options.setdefault("rank", self.rank)
        return Engine(version or self.version, events=self.events, replay=self.replay, **options)

    def has_subscriber(self):
        return self.subscribers > 0

    # --- the publisher's thread --------------------------------------------------------------------------------

    def _call(self, work):
        done = Future()
        self._queue.put((work, done))
        return done.result(timeout=10)

    def _record(self, payload, ring=True):
        sequence = self.next_sequence
        self.next_sequence += 1
        if ring:
            self.ring.append((sequence, payload))
        return sequence

    def _send(self, sequence, payload):
        self._pub.send_multipart((self.topic, sequence.to_bytes(8, "big"), payload))

    def _open(self):
        self._context = zmq.Context()
        self._context.setsockopt(zmq.IPV6, int(self.ipv6))
        self._pub = self._context.socket(self.kind)
        self._pub.linger = 0
        if self.connects:
            self._pub.connect(self.events)
        else:
            self._pub.bind(self.events)
            self.events = self._pub.last_endpoint.decode()
        self._router = None
        if self.has_replay:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.linger = 0
            self._router.bind(self.replay)
            self.replay = self._router.last_endpoint.decode()

    def _close(self):
        self.subscribers = 0
        self._pub.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()  # returns when the ports are free

    def _run(self, opened):
        try:
            self._open()
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            opened.set_exception(error)
            return
        opened.set_result(None)
        while self._running:
            self._hear_subscribers()
            if self._router is not None and self._router.poll(0):
                self._serve_replay()
            try:
                work, done = self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)
        self._close()

    def _hear_subscribers(self):
        while self.kind == zmq.XPUB and self._pub.poll(0):
            self.subscribers += 1 if self._pub.recv()[:1] == b"\x01" else -1

    def _serve_replay(self):
        frames = self._router.recv_multipart()
        if len(frames) != 3:
            return  # vLLM warns and goes on
        client, _, start = frames
        start = int.from_bytes(start, "big")
        self.asked.append(start)
        if self.mute:
            return
        if self.answer is not None:
            self.answer(self, client, start)
            return
        for sequence, payload in self.ring:
            if sequence >= start:
                self.reply(client, sequence, payload)
        self.reply_end(client)

    def reply(self, client, sequence, payload):
        topic = [self.topic] if self.version.replay_has_topic else []
        self._router.send_multipart([client, b"", *topic, sequence.to_bytes(8, "big"), payload])

    def reply_end(self, client):
        topic = [b""] if self.version.replay_has_topic else []
        self._router.send_multipart([client, b"", *topic, END, b""])

    def reply_frames(self, client, *frames):
        self._router.send_multipart([client, *frames])
