"""Frames and events that no engine should send: rejected one by one, counted, and said in the trust."""

import struct
import time

import msgspec
import pytest

from harness.wire import LAST_ARRAYS, NEWEST

V = NEWEST


def root(hash, version=V):
    return version.stored([hash], None, [hash] * 4, 4)


def payload(*events, rank=0):
    return msgspec.msgpack.encode([time.time(), list(events), rank])


STORE = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": None, "token_ids": [1, 2, 3, 4], "block_size": 4,
         "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
REMOVE = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "group_idx": 0}


def without(event, key):
    return {k: v for k, v in event.items() if k != key}


@pytest.mark.parametrize(
    ("event", "trust"),
    [
        ({"type": "BlockUpdated", "block_hashes": [1]}, "unverified"),
        (["BlockMoved", 1, 2, 3], "unverified"),
        ({**STORE, "block_hashes": [None]}, "lower"),
        ({**STORE, "block_hashes": "no list"}, "lower"),
        ({**STORE, "block_size": -4}, "lower"),
        ({**STORE, "block_size": 0}, "lower"),
        ({**STORE, "token_ids": [1, "two", 3, 4]}, "lower"),
        ({**STORE, "token_ids": [1, 2, 3, -1]}, "lower"),
        (without(STORE, "token_ids"), "lower"),
        (["BlockStored", [5]], "lower"),
        ({**REMOVE, "block_hashes": [None]}, "unsound"),
        ({**REMOVE, "block_hashes": 7}, "unsound"),
        (without(REMOVE, "block_hashes"), "unsound"),
        (["BlockRemoved"], "unsound"),
        (17, "unverified"),
        ("text", "unverified"),
        ([], "unverified"),
        ({}, "unverified"),
        ({"no": "type"}, "unverified"),
    ],
    ids=repr,
)
def test_a_bad_event_is_rejected_by_itself(engine, plane, event, trust):
    one = engine()
    p = plane(one)
    one.publish(root(1), root(2))
    p.wait_at(0)
    good = msgspec.to_builtins(V.stored([9], None, [9] * 4, 4))
    last = one.publish_payload(payload(event, good))
    status = p.wait_at(last)
    assert status["trust"] == trust, status["reasons"]
    assert p.held() >= {1, 2, 9}, "the rest of the batch counts"
    counters = status["counters"]
    assert counters["unknown_events"] + sum(counters["rejected"].values()) == 1
    assert (counters["restarts"], counters["gaps_unfilled"]) == (0, 0)
    # The way back.
    last = one.publish(V.cleared())
    assert p.wait_at(last)["trust"] == "exact"


def test_a_medium_that_nobody_knows(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    last = one.publish_payload(payload({**STORE, "medium": "BUBBLE"}))
    status = p.wait_at(last)
    assert (status["trust"], status["reason"], status["blocks"]["unknown"]) == ("unverified", "unknown_medium", 1)
    # A clear does not say whether it reaches a place that nobody knows: nothing is said to be there until it is stored again.
    last = one.publish(V.cleared())
    status = p.wait_at(last)
    assert (status["trust"], status["reason"], status["blocks"]["device"], status["blocks"]["unknown"]) == ("lower", "tier_history", 0, 0)


@pytest.mark.parametrize(
    "event",
    [
        {**STORE, "colour": "red", "nested": {"a": [1, {"b": 2}]}},
        # Fields that later versions added by name, in their order, and then two that nobody knows.
        msgspec.to_builtins(LAST_ARRAYS.stored([5], None, [1, 2, 3, 4], 4)) + ["LOCAL", None, "session", "more", {"even": "more"}],
    ],
    ids=["map", "array"],
)
def test_unknown_fields_are_passed_over(engine, plane, event):
    one = engine()
    p = plane(one)
    last = one.publish_payload(payload(event))
    status = p.wait_at(last)
    assert (status["trust"], status["blocks"]["device"]) == ("exact", 1)
    assert status["counters"]["unknown_fields"] == 2


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\x00",
        b"\xc1",
        b"hello",
        b"\xdd\xff\xff\xff\xff",  # an array of four billion
        b"\x93\xcb" + struct.pack(">d", 1.0) + b"\xdd\xff\xff\xff\xff",
        b"\x93\xcb" + struct.pack(">d", 1.0) + b"\x91\x82\xa4type\xabBlockStored\xacblock_hashes\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x93\xcb" + struct.pack(">d", 1.0) + b"\x91" * 50_000,
        b"\x93\xcb" + struct.pack(">d", 1.0) + b"\x91\xdb\xff\xff\xff\xff",
        b"\x93\xa1x\x90\x00",
    ],
    ids=lambda junk: junk[:12].hex() + f"-{len(junk)}",
)
def test_payloads_that_are_none(engine, plane, junk):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    one.publish_payload(junk)
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert status["trust"] != "exact"
    assert p.held() == {2}, "fails closed"


def test_frames_that_are_none(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    good = V.encode(time.time(), [root(66)])
    one.send_frames(b"only one")
    one.send_frames(b"", (1).to_bytes(8, "big"))
    one.send_frames(b"", b"\x01", good)
    one.send_frames(b"", (1).to_bytes(9, "big"), good)
    one.send_frames(b"", (1).to_bytes(8, "big"), good, b"one too many")
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert status["counters"]["malformed_frames"] == 5
    assert (status["trust"], p.held()) == ("exact", {1, 2})


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_the_largest_sequence_is_no_sequence(engine, plane, damaged):
    """Its number ends a replay, so no engine can mean it: refused, counted, and nothing else changes."""
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    one.send_live(2**64 - 1, b"junk" if damaged else V.encode(time.time(), [root(66)]))
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert (status["trust"], status["counters"]["refused"], p.held()) == ("exact", 1, {1, 2})


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_the_largest_sequence_but_one(engine, plane, damaged):
    one = engine()
    p = plane(one, args=["--set", "follow.replay_idle=200ms"])
    one.publish(root(1))
    p.wait_at(0)
    one.send_live(2**64 - 2, b"junk" if damaged else V.encode(time.time(), [root(66)]))
    p.wait(lambda s: s["trust"] != "exact" and s["continuity"] == "live", "a verdict")
    one.publish(root(2))
    p.wait(lambda s: s["continuity"] == "live", "goes on")
    assert p.get("/healthz")[0] == 200


@pytest.mark.parametrize("rank", [None, 0, 3, -1])
def test_ranks_in_batches(engine, plane, rank):
    one = engine()
    p = plane(one)
    last = one.publish_payload(payload(STORE, rank=rank))
    status = p.wait_at(last)
    assert status["blocks"]["device"] == 1
    assert status["counters"]["foreign_rank_batches"] == (rank in (3, -1))


def test_odd_stores_that_engines_do_send(engine, plane):
    one = engine()
    p = plane(one)
    # Nothing in it; a placeholder of another tier; a sparse one.
    one.publish(V.stored([], None, [1] * 8, 4))
    one.publish(V.stored([7], None, [], 0, medium="STORAGE", locality="REMOTE"))
    sliding = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4}
    last = one.publish(root(1), V.stored([1, 4], None, [1] * 16, 4, **sliding))
    status = p.wait_at(last)
    # Nothing ever tells what leaves such a storage.
    assert (status["trust"], status["reason"], status["counters"]["rejected"]) == ("unverified", "unremoved_tier", {})
    copies = p.copies()
    assert copies[("device", 1, 4)] == 1 and copies[("device", 0, 1)] == 1
    assert 7 in p.held()


def test_a_huge_batch(engine, plane):
    one = engine()
    p = plane(one)
    count = 50_000
    last = one.publish(V.stored(list(range(1, count + 1)), None, [n % 500 for n in range(count * 4)], 4))
    status = p.wait_at(last, deadline=40)
    assert (status["trust"], status["blocks"]["device"]) == ("exact", count)
    last = one.publish(*(V.removed([n]) for n in range(2, count + 1)))
    p.wait_at(last, deadline=40)
    assert p.held() == {1}
