"""Publishers written with pyzmq and msgspec, with the structs of ten vLLM versions, heard live and late."""

import socket

import pytest
import zmq

from harness.reference import Copies
from harness.wait import eventually
from harness.wire import FIRST_MAPS, LAST_ARRAYS, NEWEST, VERSIONS

HASHES = {
    "small": lambda n: n,
    "unsigned": lambda n: (0xFFFF_FFFF_FFFF_0000 + n),
    "signed": lambda n: -(10**18) - n,
    "bytes16": lambda n: bytes(8) + (0xA000_0000_0000_0000 + n).to_bytes(8, "big"),
    "bytes32": lambda n: bytes([7] * 24) + (0xB000_0000_0000_0000 + n).to_bytes(8, "big"),
}


def script(version, hash_of):
    """A life with everything plain in it: chains, a second copy, evictions; one list of events per batch."""
    tokens = lambda first, blocks: list(range(first, first + 4 * blocks))
    return [
        [version.stored([hash_of(n) for n in (1, 2, 3)], None, tokens(0, 3), 4)],
        [version.stored([hash_of(4)], hash_of(3), tokens(12, 1), 4), version.stored([hash_of(10)], None, tokens(100, 1), 4)],
        [version.stored([hash_of(1)], None, tokens(0, 1), 4)],  # a second copy
        [version.removed([hash_of(4)]), version.removed([hash_of(1)])],  # 1 stays: one copy is left
        [version.stored([hash_of(5)], hash_of(3), tokens(200, 1), 4)],
        [],
    ]


def reference(batches):
    copies = Copies()
    for batch in batches:
        copies.apply(batch)
    return copies


def check(plane, expected, last):
    status = plane.wait_at(last)
    assert (status["trust"], status["reason"], status["known_from"]) == ("exact", None, 0)
    assert status["blocks"]["device"] == len(expected.hashes())
    assert status["block_size"] == 4
    assert status["counters"]["unknown_fields"] == 0
    assert status["counters"]["unknown_events"] == 0
    assert status["counters"]["rejected"] == {}
    assert status["counters"]["unknown_removals"] == 0
    assert plane.copies() == expected.as_dict()
    return status


@pytest.mark.parametrize("form", HASHES)
@pytest.mark.parametrize("version", VERSIONS.values(), ids=str)
def test_every_version_live_and_for_a_late_joiner(engine, plane, version, form):
    batches = script(version, HASHES[form])
    one = engine(version, topic="kv@one")
    early = plane(one)
    for batch in batches:
        last = one.publish(*batch)
    expected = reference(batches)
    assert len(expected.hashes()) == 5
    status = check(early, expected, last)
    assert status["counters"]["gaps_unfilled"] == 0

    late = plane(one)
    status = check(late, expected, last)
    assert status["counters"]["replayed_batches"] == len(batches)
    assert status["counters"]["replays_failed"] == 0


@pytest.mark.parametrize("version", [LAST_ARRAYS, NEWEST], ids=str)
def test_a_late_joiner_without_replay_knows_from_where_it_knows(engine, plane, version):
    one = engine(version, has_replay=False, synchronised=True)
    for n in range(5):
        one.publish(version.stored([100 + n], None, [n] * 4, 4))
    p = plane(one, device_only="true")
    eventually(one.has_subscriber, "a subscription")
    status = p.wait_live()
    assert (status["trust"], status["last_sequence"]) == ("lower", None)
    for n in range(5, 8):
        last = one.publish(version.stored([100 + n], None, [n] * 4, 4))
    status = p.wait_at(last)
    assert (status["trust"], status["reason"], status["known_from"]) == ("lower", "history", 5)
    assert p.held() == {105, 106, 107}
    # What is known is credited, flagged in our own answers.
    assert p.recover()[1]["TreeDump"]["events"]
    # A clear of everything is a way back, where nothing lies behind the device.
    last = one.publish(version.cleared(), version.stored([9], None, [9] * 4, 4))
    status = p.wait_at(last)
    assert (status["trust"], p.held()) == ("exact", {9})


@pytest.mark.parametrize("version", [LAST_ARRAYS, FIRST_MAPS, NEWEST], ids=str)
def test_a_cut_ring_is_said(engine, plane, version):
    one = engine(version, buffer_steps=4)
    for n in range(10):
        last = one.publish(version.stored([100 + n], None, [n] * 4, 4))
    p = plane(one)
    status = p.wait_at(last)
    assert (status["trust"], status["reason"], status["known_from"]) == ("lower", "history", 6)
    assert p.held() == {106, 107, 108, 109}


def test_children_of_blocks_before_the_cut_wait_uncredited(engine, plane):
    one = engine(buffer_steps=2)
    one.publish(NEWEST.stored([1], None, [1] * 4, 4))
    one.publish(NEWEST.stored([2], 1, [2] * 4, 4))
    last = one.publish(NEWEST.stored([3], 2, [3] * 4, 4))
    p = plane(one)
    status = p.wait_at(last)
    assert (status["trust"], status["known_from"]) == ("lower", 1)
    # Never a root: nobody knows what comes before block 2.
    assert p.recover()[1]["TreeDump"]["events"] == []
    last = one.publish(NEWEST.stored([1], None, [1] * 4, 4))
    p.wait_at(last)
    events = p.recover()[1]["TreeDump"]["events"]
    told = [b["block_hash"] for e in events for b in e["event"]["data"]["stored"]["blocks"]]
    assert told == [1, 2, 3]


def test_an_engine_that_has_not_published_is_exact_and_empty(engine, plane):
    one = engine()
    p = plane(one)
    status = p.wait(lambda s: s["continuity"] == "live" and s["trust"] == "exact")
    assert (status["last_sequence"], status["known_from"]) == (None, 0)
    assert p.get("/readyz?strict=1")[0] == 200
    last = one.publish(NEWEST.stored([1], None, [1] * 4, 4))
    assert last == 0
    p.wait_at(0)
    assert p.held() == {1}


def test_an_engine_that_comes_after_kvplane_is_found(engine, plane):
    one = engine()
    one.kill()
    p = plane(one)
    assert p.status()["continuity"] == "connecting"
    assert p.get("/readyz")[0] == 503
    status, answer = p.recover()
    assert (status, list(answer)) == (200, ["Error"])
    one = engine.keep(one.restarted(before=[[NEWEST.stored([1], None, [1] * 4, 4)]]))
    status = p.wait_at(0)
    assert (status["trust"], status["blocks"]["device"]) == ("exact", 1)
    assert p.get("/readyz")[0] == 200


def test_ipv6(engine, plane):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    one = engine(ipv6=True)
    p = plane(one)
    last = one.publish(NEWEST.stored([1], None, [1] * 4, 4))
    p.wait(lambda s: s["last_sequence"] == last, "heard over IPv6", deadline=5)


def test_ranks_are_separate_streams_at_consecutive_ports(engine, plane, sim):
    # Consecutive free ports cannot be had from the system in one step: try until two are.
    for _ in range(50):
        zero = engine(NEWEST)
        port = int(zero.events.rsplit(":", 1)[1])
        replay = int(zero.replay.rsplit(":", 1)[1])
        try:
            one = engine(NEWEST, events=f"tcp://127.0.0.1:{port + 1}", replay=f"tcp://127.0.0.1:{replay + 1}")
            break
        except zmq.ZMQError:
            zero.kill()
    p = plane(zero, ranks=2)
    zero.publish(NEWEST.stored([1, 2], None, [1] * 8, 4), rank=0)
    one.publish(NEWEST.stored([3], None, [1] * 4, 4), rank=1)
    assert p.wait_at(0, rank=0)["blocks"]["device"] == 2
    status = p.wait_at(0, rank=1)
    assert status["blocks"]["device"] == 1
    assert status["counters"]["foreign_rank_batches"] == 0
    assert p.recover()[0] == 400
    assert list(p.recover(rank=1)[1]) == ["TreeDump"]
    assert p.recover(rank=1)[1]["TreeDump"]["events"][0]["event"]["dp_rank"] == 1
    assert p.recover(rank=2)[0] == 404


# Vectors that Dynamo's own code produced.
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 9143094415614847814),
        ({"lora_name": "adapter-a", "lora_id": 1, "extra_keys": [["adapter-a"]]}, 6665157333201000639),
        ({"extra_keys": [["tenant-a"]]}, 17009624042690211646),
    ],
    ids=["plain", "adapter", "salt"],
)
@pytest.mark.parametrize("version", [VERSIONS["vllm-0.17"], LAST_ARRAYS, NEWEST], ids=str)
def test_content_hashes_are_dynamos(engine, plane, version, more, expected):
    one = engine(version)
    p = plane(one)
    last = one.publish(version.stored([5], None, [0, 1, 2, 3], 4, **more))
    p.wait_at(last)
    (event,) = p.recover()[1]["TreeDump"]["events"]
    (block,) = event["event"]["data"]["stored"]["blocks"]
    assert block == {"block_hash": 5, "tokens_hash": expected, "mm_extra_info": None}
