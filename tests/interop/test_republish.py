"""kvplane's republished events, read by pyzmq and msgspec as a vLLM's would be: whoever joins late or falls behind ends
with exactly what the engine has.
"""

import random

import time

import pytest
import zmq

from harness.plane import Plane, http
from harness.reference import Copies
from harness.wait import eventually
from harness.wire import NEWEST as V

END = b"\xff" * 8
TOPIC = "kv@again"


class Consumer:
    """A listener as careful as vLLM's wire lets it be: it asks for what it misses, and takes nothing twice."""

    def __init__(self, context, events, replay, rank=0):
        self.context, self.events, self.replay, self.rank = context, events, replay, rank
        self.copies = Copies()
        self.last = None
        self.clears = self.replays = self.applied = 0
        self.sub = None
        self.listen()

    def listen(self):
        self.sub = self.context.socket(zmq.SUB)
        self.sub.linger = 0
        self.sub.subscribe(TOPIC)
        self.sub.connect(self.events)

    def deafen(self):
        self.sub.close()
        self.sub = None

    def ask(self):
        """Asks for what follows, or for everything, and applies the whole answer."""
        self.replays += 1
        start = 0 if self.last is None else self.last + 1
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(self.replay)
            dealer.send_multipart([b"", start.to_bytes(8, "big")])
            before = None
            while True:
                assert dealer.poll(10_000), "no answer"
                empty, topic, sequence, payload = dealer.recv_multipart()
                assert empty == b""
                if sequence == END:
                    assert (topic, payload) == (b"", b"")
                    return
                sequence = int.from_bytes(sequence, "big")
                assert topic == TOPIC.encode() and before in (None, sequence - 1), "in order, without holes"
                before = sequence
                self.apply(sequence, payload)

    def apply(self, sequence, payload):
        batch = V.decode(payload)  # typed: anything that a vLLM 0.32 would not send is an error
        assert batch.data_parallel_rank == self.rank
        for event in batch.events:
            if type(event).__name__ == "AllBlocksCleared":
                self.clears += 1
                self.copies = Copies()
        self.copies.apply(batch.events)
        self.last = sequence
        self.applied += 1

    def pump(self):
        """Takes what is there."""
        while self.sub.poll(0):
            topic, sequence, payload = self.sub.recv_multipart()
            assert topic == TOPIC.encode()
            sequence = int.from_bytes(sequence, "big")
            if self.last is None or sequence > self.last + 1:
                self.ask()
            if sequence > self.last:
                self.apply(sequence, payload)

    def held(self):
        return {hash: n for (_, _, hash), n in self.copies.count.items()}

    def wait_equal(self, sim):
        """Waits until it holds what the simulated engine does."""
        truth, _ = sim.state(self.rank)

        heard = [self.applied, time.monotonic()]

        def look():
            self.pump()
            if self.applied != heard[0]:
                heard[:] = [self.applied, time.monotonic()]
            elif time.monotonic() - heard[1] > 1:
                # What is published before a subscription arrives is not heard; after a silence a listener asks.
                self.ask()
                heard[1] = time.monotonic()
            return self.held() == truth

        def what():
            held = self.held()
            return (
                f"equal: {len(truth.keys() - held.keys())} missing, {len(held.keys() - truth.keys())} phantoms, "
                f"{sum(held[h] != truth[h] for h in held.keys() & truth.keys())} other counts, of {len(truth)}; "
                f"{self.clears} clears, {self.replays} replays, {self.applied} batches"
            )

        eventually(look, what)


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def republishing(binary, sim, context, tmp_path):
    """Makes a simulated engine, a plane that publishes it again, and listeners to that."""
    planes = []

    def make(*sim_words, ranks=1, window=None):
        s = sim("--block-size", 4, *sim_words, ranks=ranks)
        config = tmp_path / "kvplane.toml"
        config.write_text(
            (f"[journal]\nmax_batches = {window}\n" if window else "")
            + f'[[engine]]\nid = "e"\nkind = "vllm"\nevents = "{s.events[0]}"\nreplay = "{s.replay[0]}"\nranks = {ranks}\n'
            + f'republish = {{ events = "tcp://127.0.0.1:0", replay = "tcp://127.0.0.1:0", topic = "{TOPIC}", copies = true }}\n'
        )
        p = Plane(binary, "--config", config)
        planes.append(p)
        outlets = p.logged("republishing", ranks)

        def listener(rank=0, kind=Consumer):
            outlet = next(o for o in outlets if o["stream"] == f"e/{rank}")
            return kind(context, outlet["events"], outlet["replay"], rank)

        p.outlets = outlets
        return s, p, listener

    yield make
    for p in planes:
        p.close()


def load(sim, requests, seed):
    """Conversations that share prefixes; some are repeated, so that blocks come and go and have copies."""
    dice = random.Random(seed)
    prefix = [dice.randrange(3_000) for _ in range(40)]
    for _ in range(requests):
        tail = [dice.randrange(3_000) for _ in range(dice.randrange(1, 60))]
        sim.complete(prefix[: dice.randrange(8, 40)] + tail, dice.randrange(1, 24))


def heard(sim, plane, rank=0):
    """Waits until the plane has heard everything."""
    plane.wait_at(sim.state(rank)[1] - 1, rank=rank)


@pytest.mark.parametrize("window", [None, 8], ids=["in-the-window", "below-the-window"])
def test_a_late_listener_ends_equal(republishing, window):
    s, p, listener = republishing("--blocks", 64, window=window)
    load(s, 30, seed=1)
    heard(s, p)
    late = listener()
    late.ask()
    assert late.clears == 1, "a whole state begins with a clear"
    assert late.held() == s.state()[0]
    load(s, 30, seed=2)
    late.wait_equal(s)


@pytest.mark.parametrize("window", [None, 8], ids=["in-the-window", "below-the-window"])
def test_a_listener_that_missed_something(republishing, window):
    s, p, listener = republishing("--blocks", 64, window=window)
    load(s, 5, seed=1)
    heard(s, p)
    one = listener()
    one.ask()
    one.wait_equal(s)
    one.deafen()
    load(s, 20, seed=2)
    heard(s, p)
    clears = one.clears
    one.listen()
    one.ask()
    assert one.held() == s.state()[0]
    assert one.clears == clears + (window is not None), "from below the window: everything; else what was missed alone"
    load(s, 5, seed=3)
    one.wait_equal(s)


@pytest.mark.parametrize(
    "restart", [{}, {"first_sequence": 200, "same_content": True}, {"first_sequence": 200}],
    ids=["from-0", "overtaken-same-content", "overtaken"],
)
def test_an_engine_that_restarts(republishing, restart):
    s, p, listener = republishing("--blocks", 64)
    load(s, 10, seed=1)
    heard(s, p)
    one = listener()
    one.ask()
    one.wait_equal(s)
    clears = one.clears
    s.fault(restart=restart)
    load(s, 10, seed=2)
    one.wait_equal(s)
    assert one.clears > clears, "a new life opens with a clear"
    heard(s, p)
    late = listener()
    late.ask()
    assert late.held() == one.held() == s.state()[0]


def test_a_loss_is_told_as_a_clear(republishing):
    """What cannot be known is not claimed: after a hole that nobody can fill, listeners hold less, never more."""
    s, p, listener = republishing("--blocks", 64)
    load(s, 10, seed=1)
    heard(s, p)
    one = listener()
    one.ask()
    one.wait_equal(s)
    clears = one.clears
    s.fault(lose=1)
    load(s, 6, seed=2)
    heard(s, p)
    truth = s.state()[0]
    eventually(lambda: (one.pump(), one.clears > clears)[1], "the clear")
    held = {hash: n for (_, _, hash), n in p.copies().items()}
    eventually(lambda: (one.pump(), one.held() == held)[1], "what the plane holds")
    assert one.held().keys() <= truth.keys(), "phantoms"


def test_an_engines_clear_passes(republishing):
    s, p, listener = republishing()
    s.complete([1] * 40, 4)
    heard(s, p)
    one = listener()
    one.ask()
    one.wait_equal(s)
    clears = one.clears
    assert http("POST", s.http + "/reset_prefix_cache")[1] == {"success": True}
    s.complete([2] * 40, 4)
    one.wait_equal(s)
    assert one.clears == clears + 1


def test_ranks_have_their_own_outlets(republishing):
    s, p, listener = republishing("--blocks", 64, ranks=2)
    load(s, 30, seed=1)
    listeners = [listener(rank) for rank in range(2)]
    for rank, one in enumerate(listeners):
        heard(s, p, rank)
        one.ask()
        one.wait_equal(s)
    load(s, 20, seed=2)
    for one in listeners:
        one.wait_equal(s)


class Filtering(Consumer):
    """As vLLM's example does: of a replay it takes nothing at or below its last sequence."""

    def apply(self, sequence, payload):
        if self.last is None or sequence > self.last:
            super().apply(sequence, payload)


def test_a_snapshot_is_above_what_was_asked_for(republishing):
    """A state of many batches, and a window that is hardly left behind."""
    s, p, listener = republishing("--blocks", 6000, window=2)
    for n in range(12):
        s.complete([n] + list(range(n * 1500, n * 1500 + 1500)), 1)
    heard(s, p)
    one = listener(kind=Filtering)
    one.ask()
    assert one.held() == s.state()[0]
    assert one.applied > 4, "a state of several batches"
    one.deafen()
    for n in range(20, 24):
        s.complete([n] * 10, 1)
    heard(s, p)
    one.listen()
    one.ask()
    assert one.held() == s.state()[0]


def test_kvplane_follows_kvplane(republishing, plane):
    s, p, _ = republishing("--blocks", 64)
    load(s, 20, seed=1)
    heard(s, p)
    outlet = p.outlets[0]
    second = plane(args=["--engine", f"vllm={outlet['events']},replay={outlet['replay']},topic={TOPIC},id=again"])

    def equal():
        return {hash: n for (_, _, hash), n in second.copies().items()} == s.state()[0]

    eventually(equal, lambda: f"equal at the start: {second.status()}")
    load(s, 10, seed=2)
    eventually(equal, lambda: f"equal after more: {second.status()}")
    s.fault(restart={"first_sequence": 100})
    load(s, 10, seed=3)
    eventually(equal, lambda: f"equal after a restart: {second.status()}")
