"""/kv_recover in Dynamo's JSON, asked by a consumer that knows presence and nothing else."""

import random

import pytest

from harness.reference import Copies, Presence
from harness.wait import eventually
from harness.wire import NEWEST

V = NEWEST


def root(hash):
    return V.stored([hash], None, [hash % 1000] * 4, 4)


def follows(hash, parent):
    return V.stored([hash], parent, [hash % 1000] * 4, 4)


def body(answer, variant):
    assert list(answer) == [variant], answer
    return answer[variant]


def test_shapes_are_dynamos_to_the_byte(engine, plane):
    one = engine()
    p = plane(one, worker_id=7)
    one.publish(root(1), follows(2**64 - 1, 1))
    p.wait_at(0)
    first = body(p.recover()[1], "TreeDump")
    assert first["reset_scope"] == "all"
    (event,) = first["events"]
    assert list(event) == ["worker_id", "storage_tier", "residency_domain", "event"]
    assert (event["worker_id"], event["storage_tier"], event["residency_domain"]) == (7, "device", "worker")
    assert list(event["event"]) == ["event_id", "data", "dp_rank"]
    stored = event["event"]["data"]["stored"]
    assert list(stored) == ["parent_hash", "start_position", "blocks"]
    assert (stored["parent_hash"], stored["start_position"]) == (None, None)
    assert [block["block_hash"] for block in stored["blocks"]] == [1, 2**64 - 1]
    assert all(list(block) == ["block_hash", "tokens_hash", "mm_extra_info"] for block in stored["blocks"])

    one.publish(V.removed([2**64 - 1]))
    one.publish(V.cleared())
    p.wait_at(2)
    events = body(p.recover(start=first["last_event_id"] + 1)[1], "Events")
    assert [e["event"]["data"] for e in events["events"]] == [{"removed": {"block_hashes": [2**64 - 1]}}, "cleared"]
    assert [e["event"]["event_id"] for e in events["events"]] == [first["last_event_id"] + 1, first["last_event_id"] + 2]
    assert events["last_event_id"] == first["last_event_id"] + 2


def test_ranges(engine, plane):
    one = engine()
    p = plane(one)
    for n in range(5):
        one.publish(root(n))
    epoch = p.wait_at(4)["epoch"]
    last = body(p.recover()[1], "TreeDump")["last_event_id"]
    assert last >> 20 == epoch
    for back in range(5):
        events = body(p.recover(start=last - back)[1], "Events")
        assert [e["event"]["event_id"] for e in events["events"]] == list(range(last - back, last + 1))
        assert events["last_event_id"] == last
    # `end` only validates.
    assert len(body(p.recover(start=last - 3, end=last - 3)[1], "Events")["events"]) == 4
    assert body(p.recover(start=last, end=last - 1)[1], "InvalidRange") == {"start_id": last, "end_id": last - 1}
    assert body(p.recover(start=9, end=4)[1], "InvalidRange") == {"start_id": 9, "end_id": 4}
    body(p.recover(end=3)[1], "TreeDump")
    # Beyond the newest of this life.
    for ahead in (1, 2, 1000):
        too_new = body(p.recover(start=last + ahead)[1], "TooNew")
        assert too_new == {"requested_start": last + ahead, "requested_end": last, "newest_available": last}
    too_new = body(p.recover(start=last + 1, end=last + 9)[1], "TooNew")
    assert too_new["requested_end"] == last + 9
    # Foreign: never TooNew.
    for foreign in (0, 1, 5, 1024, (epoch - 1) << 20, (epoch + 1) << 20, ((epoch + 3_600_000) << 20) + 5, 2**64 - 1):
        body(p.recover(start=foreign)[1], "TreeDump")


@pytest.mark.parametrize(
    ("question", "status"),
    [({"start": "x"}, 400), ({"start": -1}, 400), ({"start": 2**64}, 400), ({"engine": "nobody"}, 404),
     ({"rank": 1}, 404), ({"rank": "a"}, 400), ({}, 200)],
)
def test_refusals_have_the_shape_that_the_caller_reads(engine, plane, question, status):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    got, answer = p.recover(**question)
    assert got == status
    assert list(answer) == (["TreeDump"] if status == 200 else ["Error"])
    assert status == 200 or isinstance(answer["Error"], str)


def test_several_engines_must_be_named(engine, plane):
    a, b = engine(), engine()
    p = plane(a, b)
    a.publish(root(1))
    b.publish(root(2))
    p.wait_at(0, "e0")
    p.wait_at(0, "e1")
    status, answer = p.recover()
    assert status == 400 and "e0" in answer["Error"] and "e1" in answer["Error"]
    consumers = {id: Presence() for id in ("e0", "e1")}
    for id, consumer in consumers.items():
        consumer.catch_up(p, engine=id)
    assert [consumer.device() for consumer in consumers.values()] == [{1}, {2}]
    workers = {p.recover(engine=id)[1]["TreeDump"]["events"][0]["worker_id"] for id in consumers}
    assert len(workers) == 2 and all(0 < worker < 2**53 for worker in workers)


def test_a_stream_that_knows_nothing_answers_error(engine, plane):
    one = engine(has_replay=False)
    one.kill()
    p = plane(one)
    status, answer = p.recover()
    assert (status, list(answer)) == (200, ["Error"])


def test_copies_do_not_show(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    last = body(p.recover()[1], "TreeDump")["last_event_id"]
    one.publish(root(1))  # a second copy
    one.publish(V.removed([1]))  # one goes
    p.wait_at(2)
    assert body(p.recover(start=last + 1)[1], "TooNew")["newest_available"] == last, "nothing changed for them"
    one.publish(V.removed([1]))
    p.wait_at(3)
    (event,) = body(p.recover(start=last + 1)[1], "Events")["events"]
    assert event["event"]["data"] == {"removed": {"block_hashes": [1]}}


def test_side_groups_do_not_show(engine, plane):
    one = engine()
    p = plane(one)
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}
    # A block alone may be one that is not full: two together tell the size of all.
    one.publish(V.stored([1, 3], None, [1] * 8, 4), V.stored([1], None, [1] * 4, 4, **window), V.stored([2], 1, [2] * 4, 4, **window))
    p.wait_at(0)
    consumer = Presence()
    consumer.catch_up(p)
    assert consumer.device() == {1, 3}
    assert p.copies() == {("device", 0, 1): 1, ("device", 0, 3): 1, ("device", 1, 1): 1, ("device", 1, 2): 1}
    one.publish(V.removed([1], group_idx=1))
    p.wait_at(1)
    consumer.catch_up(p)
    assert consumer.device() == {1, 3}


def test_tiers_are_told_apart(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1), follows(2, 1))
    one.publish(V.stored([1], None, [1] * 4, 4, medium="CPU"))
    one.publish(V.removed([1]))
    p.wait_at(2)
    consumer = Presence()
    consumer.catch_up(p)
    assert consumer.device() == {2}
    assert set(consumer.tiers["host_pinned"]) == {1}
    # vLLM's clear empties the device and says nothing of other tiers: what they hold is not known until it is seen.
    one.publish(V.cleared())
    status = p.wait_at(3)
    assert (status["trust"], status["reason"]) == ("lower", "tier_history")
    consumer.catch_up(p)
    assert not any(consumer.tiers.values())
    last = one.publish(root(1), V.stored([1], None, [1] * 4, 4, medium="CPU"))
    p.wait_at(last)
    consumer.catch_up(p)
    assert (consumer.device(), set(consumer.tiers["host_pinned"])) == ({1}, {1})
    fresh = Presence()
    fresh.catch_up(p)
    assert fresh.tiers == consumer.tiers


def test_an_expired_cursor_gets_a_dump(engine, plane):
    one = engine()
    p = plane(one, args=["--set", "journal.max_batches=3"])
    one.publish(root(0))
    p.wait_at(0)
    consumer = Presence()
    consumer.catch_up(p)
    for n in range(1, 10):
        last = one.publish(root(n))
    p.wait_at(last)
    assert list(consumer.catch_up(p)) == ["TreeDump"]
    assert consumer.device() == set(range(10))
    last = one.publish(root(10))
    p.wait_at(last)
    assert list(consumer.catch_up(p)) == ["Events"]


def test_a_restart_makes_the_cursor_foreign(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1), root(2))
    before = p.wait_at(0)
    consumer = Presence()
    consumer.catch_up(p)
    one = engine.keep(one.restarted(before=[[root(n)] for n in range(5, 9)]))
    p.wait(lambda s: s["epoch"] > before["epoch"] and s["last_sequence"] == 3 and s["continuity"] == "live")
    assert list(consumer.catch_up(p)) == ["TreeDump"]
    assert consumer.device() == {5, 6, 7, 8}


def test_a_lost_batch_is_a_clear(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1), root(2))
    p.wait_at(0)
    consumer = Presence()
    consumer.catch_up(p)
    one.publish(V.removed([1]), live=False, ring=False)
    one.publish(root(3))
    p.wait_at(2)
    assert list(consumer.catch_up(p)) == ["Events"]
    assert consumer.device() == {3}


def test_trust_that_is_not_credited_is_not_given(engine, plane):
    one = engine(buffer_steps=2)
    for n in range(5):
        last = one.publish(root(n))
    p = plane(one, args=["--set", 'trust.credit=["exact"]'])
    assert p.wait_at(last)["trust"] == "lower"
    assert "lower" in p.recover()[1]["Error"]
    p = plane(one)
    p.wait_at(last)
    assert list(p.recover()[1]) == ["TreeDump"]


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_by_presence_ends_where_the_engine_is(engine, plane, seed):
    """Random chains, copies, evictions of leaves and of parents, clears, losses and restarts; polled at random moments."""
    dice = random.Random(seed)
    one = engine(buffer_steps=1000)
    p = plane(one, args=["--set", f"journal.max_batches={dice.choice([5, 40, 10_000])}"])
    copies, known, chain_of = Copies(), [], {}
    consumer = Presence()
    kinds = set()
    epoch = p.wait_live()["epoch"]

    def step():
        events = []
        for _ in range(dice.randrange(1, 5)):
            move = dice.random()
            held = sorted(copies.hashes())
            if move < 0.6 or not held:
                # vLLM stores a block whose whole prefix is held by the request.
                parent = dice.choice(held) if held and dice.random() < 0.7 else None
                prefix = chain_of.get(parent, ())
                if any(hash not in copies.hashes() for hash in prefix):
                    continue
                hash = dice.randrange(1, 2**64)
                chain_of[hash] = (*prefix, hash)
                event = V.stored([hash], parent, [hash % 1000] * 4, 4)
            elif move < 0.7:
                hash = dice.choice(held)  # another copy
                prefix = chain_of[hash]
                if any(h not in copies.hashes() for h in prefix):
                    continue
                event = V.stored([hash], prefix[-2] if len(prefix) > 1 else None, [hash % 1000] * 4, 4)
            elif move < 0.99:
                event = V.removed([dice.choice(held)])
            else:
                event = V.cleared()
            copies.apply([event])
            events.append(event)
        return events

    for turn in range(120):
        last = one.publish(*step(), live=dice.random() > 0.1)
        if turn == 60:
            copies, chain_of = Copies(), {}
            one = engine.keep(one.restarted(before=[step() for _ in range(dice.randrange(1, 90))]))
            last = one.next_sequence - 1
            epoch = p.wait(lambda s: s["epoch"] > epoch and s["continuity"] == "live")["epoch"]
        if dice.random() < 0.2:
            status, answer = p.recover(**({} if consumer.cursor is None else {"start": consumer.cursor + 1}))
            kinds |= set(answer)
            if "Error" not in answer:
                consumer.apply(answer)
    status = p.wait_at(last)
    assert (status["trust"], status["epoch"]) == ("exact", epoch)
    eventually(lambda: consumer.catch_up(p), "an answer")
    assert consumer.device() == copies.hashes()
    assert {hash: n for (_, _, hash), n in p.copies().items()} == {hash: n for (_, _, hash), n in copies.count.items()}
    fresh = Presence()
    fresh.catch_up(p)
    assert fresh.tiers.get("device", {}) == consumer.tiers.get("device", {})
