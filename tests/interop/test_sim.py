"""`kvplane sim`, read by pyzmq and msgspec: it must be indistinguishable from the vLLM that it claims to be."""

import random

import msgspec
import pytest
import zmq

from harness.plane import http
from harness.reference import Copies
from harness.replay import replay
from harness.wait import eventually
from harness.wire import VERSIONS


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


def load(sim, requests, seed=1):
    """Conversations that share prefixes, on a pool that is too small for them."""
    dice = random.Random(seed)
    prefix = [dice.randrange(30_000) for _ in range(40)]
    for _ in range(requests):
        tail = [dice.randrange(30_000) for _ in range(dice.randrange(1, 60))]
        sim.complete(prefix[: dice.randrange(8, 40)] + tail, dice.randrange(1, 24))


@pytest.mark.parametrize(
    ("profile", "form"),
    [(name, "unsigned") for name in VERSIONS]
    + [("vllm-0.9.0", "signed"), ("vllm-0.10.2", "bytes32"), ("vllm-0.24", "bytes16"), ("vllm-0.32", "bytes32")],
)
def test_typed_structs_read_every_frame(sim, context, profile, form):
    version = VERSIONS[profile]
    s = sim("--profile", profile, "--hashes", form, "--blocks", 40, "--block-size", 8, "--topic", "kv@x", "--seed", 3)
    live = context.socket(zmq.SUB)
    live.subscribe(b"kv@")
    live.connect(s.events[0])
    # A subscription takes a moment to arrive; replay has what was published before.
    def first():
        s.complete([1, 2, 3], 8)
        return live.poll(20)
    eventually(first, "a live frame")
    load(s, 40)
    state, next_sequence = s.state()
    heard = {}
    while not heard or max(heard) < next_sequence - 1:
        assert live.poll(10_000), (max(heard, default=None), next_sequence)
        topic, sequence, payload = live.recv_multipart()
        assert topic == b"kv@x" and len(sequence) == 8
        heard[int.from_bytes(sequence, "big")] = payload
    live.close(linger=0)

    topics, batches = replay(context, s.replay[0], 0, version.replay_has_topic)
    assert topics == ({b"kv@x"} if version.replay_has_topic else set())
    assert [sequence for sequence, _ in batches] == list(range(next_sequence))
    copies, stores, removals, stamps = Copies(), 0, 0, set()
    for sequence, payload in batches:
        assert heard.get(sequence, payload) == payload, "live and replayed differ"
        batch = version.decode(payload)
        # The same bytes come out of msgspec: field order, omitted defaults, widths of integers.
        assert msgspec.msgpack.encode(batch) == payload
        stamps.add(batch.ts)
        if version.has_rank:
            assert batch.data_parallel_rank == 0
        for event in batch.events:
            stores += type(event).__name__ == "BlockStored"
            removals += type(event).__name__ == "BlockRemoved"
            for value in event.block_hashes:
                assert isinstance(value, bytes) == form.startswith("bytes")
                assert not isinstance(value, bytes) or len(value) == int(form[5:])
        copies.apply(batch.events)
    assert stores > 20 and removals > 20, (stores, removals)
    assert len(stamps) == len(batches), "timestamps never repeat"
    assert {hash: n for (_, _, hash), n in copies.count.items()} == state


@pytest.mark.parametrize("profile", ["vllm-0.24", "vllm-0.26"])
def test_replay_framings(sim, context, profile):
    s = sim("--profile", profile, "--topic", "t")
    for n in range(5):
        s.complete([n] * 40, 4)
    _, next_sequence = s.state()
    has_topic = VERSIONS[profile].replay_has_topic
    middle = next_sequence // 2
    assert [q for q, _ in replay(context, s.replay[0], middle, has_topic)[1]] == list(range(middle, next_sequence))
    assert replay(context, s.replay[0], next_sequence, has_topic)[1] == []
    assert replay(context, s.replay[0], 2**63, has_topic)[1] == []
    # Without the delimiter vLLM ignores the request.
    assert replay(context, s.replay[0], 0, has_topic, delimiter=False) is None


def test_a_ring_is_cut_silently(sim, context):
    s = sim("--buffer-steps", 3)
    for n in range(8):
        s.complete([n] * 40, 4)
    _, next_sequence = s.state()
    _, batches = replay(context, s.replay[0], 0, True)
    assert [q for q, _ in batches] == list(range(next_sequence - 3, next_sequence))


def test_a_clear_is_published_with_the_next_step(sim, context):
    version = VERSIONS["vllm-0.32"]
    s = sim()
    s.complete([1] * 40, 4)
    _, before = s.state()
    assert http("POST", s.http + "/reset_prefix_cache")[1] == {"success": True}
    assert s.state()[1] == before, "an idle engine publishes nothing"
    s.complete([2] * 40, 4)
    events = [e for _, p in replay(context, s.replay[0], before, True)[1] for e in version.decode(p).events]
    assert type(events[0]).__name__ == "AllBlocksCleared"


def test_kvplane_follows_a_simulator_through_faults(sim, plane):
    s = sim("--blocks", 64, "--block-size", 8)
    p = plane(s)
    dice = random.Random(5)
    for fault in (
        {"drop": 2}, {"duplicate": 2}, {"reorder": 1}, {"garbage": 1}, {"truncate": 1}, {"disconnect": True},
        {"restart": {}}, {"restart": {"first_sequence": 60, "same_content": True}}, {"delay_ms": 50, "count": 2},
    ):
        load(s, 4, seed=dice.randrange(1000))
        s.fault(**fault)
        load(s, 4, seed=dice.randrange(1000))
        truth, next_sequence = s.state()
        status = p.wait_at(next_sequence - 1)
        assert status["trust"] == "exact", fault
        held = {hash: n for (_, _, hash), n in p.copies().items()}
        assert held == truth, fault
    assert status["counters"]["restarts"] == 2
    s.fault(lose=1)
    load(s, 4)
    truth, next_sequence = s.state()
    status = p.wait_at(next_sequence - 1)
    assert (status["trust"], status["reason"]) == ("lower", "gap")
    assert p.held() <= truth.keys(), "phantoms"
