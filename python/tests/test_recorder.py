"""What a recorder answers, and what it refuses."""

import json
import logging
import threading
from array import array
from collections import deque

import pytest

import kvplane

STORED = (
    '{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":4,"data":{"stored":{"parent_hash":null,'
    '"start_position":null,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":9143094415614847814,"mm_extra_info":null}]}},"dp_rank":0}}'
)
REMOVED = (
    '{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":5,"data":{"removed":{"block_hashes":'
    '[18446744073709551615]}},"dp_rank":0}}'
)
CLEARED = '{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":6,"data":"cleared","dp_rank":0}}'


def recorder(**options):
    return kvplane.Recorder("e", 0, 2, **options)


def store(of, number, *hashes, parent=None, **details):
    return of.apply_stored(number, parent, list(hashes), [token for hash in hashes for token in (hash, hash)], **details)


def ask(of, start=None, end=None):
    ((kind, body),) = json.loads(of.get_events_json(start, end)).items()
    return kind, body


def events(of, start):
    kind, body = ask(of, start)
    assert kind == "Events", body
    return [(event["event"]["event_id"], event["event"]["data"]) for event in body["events"]]


def held(of):
    return {block["block_hash"] for block in of.snapshot()}


def test_answers_are_dynamos_to_the_byte():
    one = kvplane.Recorder("e", block_size=4, worker_id=7)
    assert one.apply_stored(4, None, [2**64 - 1], [0, 1, 2, 3]) == 4
    assert one.apply_removed(5, [2**64 - 1]) == 5
    assert one.apply_cleared(6) == 6
    assert one.get_events_json(4) == f'{{"Events":{{"events":[{STORED},{REMOVED},{CLEARED}],"last_event_id":6}}}}'
    assert one.get_events_json(6, 9) == f'{{"Events":{{"events":[{CLEARED}],"last_event_id":6}}}}'
    assert one.get_events_json() == '{"TreeDump":{"events":[],"last_event_id":6,"reset_scope":"all"}}'
    assert one.get_events_json(7) == '{"TooNew":{"requested_start":7,"requested_end":6,"newest_available":6}}'
    assert one.get_events_json(7, 8) == '{"TooNew":{"requested_start":7,"requested_end":8,"newest_available":6}}'
    assert one.get_events_json(5, 4) == '{"InvalidRange":{"start_id":5,"end_id":4}}'


def test_a_recorder_that_was_told_nothing_says_so():
    assert ask(recorder()) == ("Error", "stream e/0: nothing is known yet")
    assert ask(recorder(), 3) == ("Error", "stream e/0: nothing is known yet")


def test_every_number_is_told_also_those_that_changed_nothing():
    one = recorder()
    store(one, 1, 1)
    store(one, 2, 1)  # a second copy
    one.apply_removed(3, [1])
    one.apply_removed(4, [1])
    assert [number for number, _ in events(one, 1)] == [1, 2, 3, 4]
    nothing = {"removed": {"block_hashes": []}}
    assert [data for _, data in events(one, 2)] == [nothing, nothing, {"removed": {"block_hashes": [1]}}]


def test_a_batch_that_did_several_things_has_one_number():
    one = recorder()
    frame = kvplane.encode([
        {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [1, 1, 2, 2], "block_size": 2},
        {"type": "BlockRemoved", "block_hashes": [2]},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 1], "block_size": 2, "medium": "CPU"},
    ])
    assert one.apply_frame(0, frame) == 0
    kind, body = ask(one, 0)
    assert kind == "Events"
    assert {event["event"]["event_id"] for event in body["events"]} == {0}
    assert [event["storage_tier"] for event in body["events"]] == ["device", "device", "host_pinned"]


def test_numbers_of_our_own_carry_their_life():
    first, second = recorder(), recorder()
    numbers = [store(first, None, 1), first.apply_removed(None, [1]), first.apply_cleared(None)]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert numbers[0] > 2**60
    assert store(recorder(), None, 1) >> 20 > numbers[0] >> 20, "also in the same millisecond"
    store(second, numbers[-1] + 2**20, 5)
    # A cursor of another life is outside of the window, whichever side of it.
    assert ask(second, numbers[-1] + 1)[0] == "TreeDump"
    assert ask(first, numbers[-1] + 2**20)[0] == "TreeDump"
    assert ask(first, numbers[-1] + 1)[0] == "TooNew"


def test_a_cursor_that_nobody_can_have_is_of_another_life():
    one = recorder()
    for number in range(1, 4):
        store(one, number, number)
    assert ask(one, 4)[0] == "TooNew"
    for foreign in (0, 5, 501, 2**64 - 1):
        assert ask(one, foreign)[0] == "TreeDump", foreign


def test_a_gap_drops_what_is_known_and_is_told(caplog):
    one = recorder()
    store(one, 1, 1)
    with caplog.at_level(logging.WARNING, "kvplane"):
        store(one, 5, 5)
    assert held(one) == {5}
    assert events(one, 2)[0] == (4, "cleared") and [number for number, _ in events(one, 2)] == [4, 5]
    assert [number for number, _ in events(one, 5)] == [5, 5], "no number below the one that was asked for"
    status = one.status()
    assert (status["trust"], status["reasons"], status["known_from"], status["gaps"]) == ("lower", ["gap"], 5, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "e/0 at 5: events before this one are missing: gap",
        "e/0 at 5: trust is lower: gap",
    ]


def test_a_gap_that_the_operator_keeps_is_not_given_out():
    one = recorder(on_gap="keep")
    store(one, 1, 1)
    store(one, 5, 5)
    assert held(one) == {1, 5} and one.status()["trust"] == "unsound"
    assert ask(one) == ("Error", "stream e/0: trust is unsound, reason gap_kept, which is not credited")


@pytest.mark.parametrize("number", [3, 2, 0])
def test_a_number_that_has_passed_is_refused(number):
    one = recorder()
    store(one, 3, 1)
    before = one.digest()
    with pytest.raises(kvplane.OrderError, match=f"{number} is not above 3") as raised:
        store(one, number, 2)
    assert raised.value.code == "conflict"
    assert one.digest() == before and one.status()["refused"] == 1
    store(one, 4, 2)
    assert one.status()["trust"] == "exact"


def test_what_came_before_the_recorder_is_unknown():
    late = recorder(from_start=False)
    store(late, 17, 1)
    status = late.status()
    assert (status["trust"], status["reasons"], status["known_from"]) == ("lower", ["history"], 17)
    assert held(late) == {1}
    # Engines number from 0: a first frame with another number says the same.
    joined = recorder()
    joined.apply_frame(3, kvplane.encode([{"type": "AllBlocksCleared"}]))
    assert joined.status()["known_from"] == 3


@pytest.mark.parametrize("budget", [{"max_events": 8}, {"max_bytes": 4_000}])
def test_a_full_window_lets_go_of_the_oldest(budget):
    one = recorder(**budget)
    for number in range(1_000):
        store(one, number, number)
    kept = one.status()["window_events"]
    assert 1 <= kept < 20
    assert len(events(one, 1_000 - kept)) == kept
    kind, body = ask(one, 999 - kept)
    assert kind == "TreeDump" and body["last_event_id"] == 999
    assert len(held(one)) == 1_000, "the state is not in the window"


def test_a_full_state_records_less_and_says_so():
    one = recorder(max_state_bytes=20_000)
    for number in range(1_000):
        store(one, number, number)
    status = one.status()
    assert (status["trust"], status["reasons"]) == ("lower", ["budget"])
    assert status["unrecorded_blocks"] == 1_000 - len(held(one)) > 0


def test_what_makes_equal_tokens_different_blocks():
    content = set()
    for details in ({}, {"lora_name": "a"}, {"lora_id": 3}, {"cache_salt": "s"}, {"extra_keys": [["x"]]},
                    {"extra_keys": [[("image", 0)]]}, {"extra_keys": [[b"\1" * 32, 7]]}):
        one = recorder()
        store(one, 1, 1, **details)
        (block,) = one.snapshot()
        content.add(block["tokens_hash"])
    assert len(content) == 7


def test_tiers_groups_and_copies():
    one = recorder()
    store(one, 1, 1, medium="GPU", group_idx=0, kv_cache_spec_kind="full_attention")
    store(one, 2, 1, medium="GPU", group_idx=0, kv_cache_spec_kind="full_attention")
    store(one, 3, 1, medium="CPU", group_idx=0, kv_cache_spec_kind="full_attention")
    (block,) = one.snapshot()
    assert {(place["tier"], place["medium"], place["group_idx"], place["copies"]) for place in block["held"]} == {
        ("device", "GPU", 0, 2), ("host", "CPU", 0, 1),
    }
    one.apply_removed(4, [1], medium="CPU", group_idx=0)
    assert one.status()["blocks"] == {"device": 1, "host": 0, "disk": 0, "remote": 0, "unknown": 0}


def test_hashes_of_every_width():
    one = recorder()
    digest = bytes(range(32))
    one.apply_stored(1, None, [-1, digest, digest.hex(), bytes(16)], [1] * 8)
    one.apply_removed(2, [2**64 - 1])  # the same 64 bits
    assert held(one) == {int.from_bytes(digest[-8:], "big"), int.from_bytes(digest[:8], "big"), 0}


def test_a_snapshot_is_of_one_moment():
    one = recorder()
    store(one, 1, 1, 2, 3)
    taken = one.snapshot()
    store(one, 2, 4, parent=3)
    assert (taken.last_event_id, len(taken), taken.trust, taken.reasons, taken.block_size) == (1, 3, "exact", [], 2)
    assert taken.digest != one.digest() == one.snapshot().digest
    assert [(block["block_hash"], block["parent_block_hash"], block["token_ids"]) for block in taken] == [
        (1, None, [1, 1]), (2, 1, [2, 2]), (3, 2, [3, 3]),
    ]
    assert json.loads(taken.to_json())["TreeDump"]["last_event_id"] == 1
    assert "3 blocks" in repr(taken)
    one.apply_removed(3, [1])  # a hole, which others build on
    assert len(one.snapshot()) == 3 and "3 blocks" in repr(one.snapshot())


def test_a_snapshot_is_told_by_what_it_was_worth():
    one = recorder(on_gap="keep")
    before = one.snapshot()
    assert (before.last_event_id, len(before)) == (None, 0)
    store(one, 1, 1)
    good = one.snapshot()
    store(one, 5, 5)
    unsound, refused = one.snapshot(), one.get_events_json()
    one.apply_cleared(6)
    assert json.loads(before.to_json()) == {"Error": "stream e/0: nothing is known yet"}
    assert list(json.loads(good.to_json())) == ["TreeDump"]
    assert unsound.to_json() == refused and "unsound" in refused
    assert list(json.loads(one.get_events_json())) == ["TreeDump"]


class Refuses(logging.Handler):
    def emit(self, record):
        raise RuntimeError("of the handler")


def leaves(record):
    raise SystemExit("of the filter")


@pytest.mark.parametrize("fault", [lambda logger: logger.addHandler(Refuses()), lambda logger: logger.addFilter(leaves)])
def test_what_is_recorded_is_recorded_whatever_becomes_of_its_log_line(monkeypatch, fault):
    logger, unraisable = logging.getLogger("kvplane"), []
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr("sys.unraisablehook", lambda what: unraisable.append(str(what.exc_value)))
    fault(logger)
    one = recorder()
    store(one, 1, 1)
    unraisable.clear()
    assert store(one, 5, 5) == 5
    assert [words.split(" ")[0] for words in unraisable] == ["of", "of"], "a line for the gap, one for what it did to trust"
    assert one.status()["last_event_id"] == 5 and held(one) == {5}


def test_frames_of_another_rank_are_recorded_counted_and_told_once(caplog):
    one = recorder()
    frames = [kvplane.encode([{"type": "AllBlocksCleared"}], rank=rank) for rank in (0, 3, 3, None)]
    with caplog.at_level(logging.WARNING, "kvplane"):
        for number, frame in enumerate(frames):
            assert one.apply_frame(number, frame) == number
    assert (one.status()["foreign_rank_batches"], one.status()["trust"]) == (2, "exact")
    lines = [record.getMessage() for record in caplog.records]
    assert ["names rank 3" in line for line in lines].count(True) == 1
    assert any("trust is unsound: foreign_rank" in line for line in lines), "until the next clear"


def test_equal_states_have_equal_digests():
    one, other = recorder(), recorder()
    store(one, 1, 1)
    store(one, 2, 2)
    store(other, 7, 2)
    store(other, 8, 1)
    store(other, 9, 3)
    assert one.digest() != other.digest()
    other.apply_removed(10, [3])
    assert one.digest() == other.digest()


def test_after_shutdown_nothing_is_recorded_or_told():
    with recorder() as one:
        store(one, 1, 1)
    one.shutdown()
    for call in (lambda: store(one, 2, 2), one.get_events_json, one.snapshot, lambda: one.apply_frame(2, b"\x92\x00\x90")):
        with pytest.raises(kvplane.ClosedError) as raised:
            call()
        assert raised.value.code == "shutting_down"
    assert one.status()["blocks"]["device"] == 0


@pytest.mark.parametrize(("kind", "reasons"), [("vllm", []), ("tokenspeed", ["shared_hash"]), ("trtllm", ["shared_hash"]), ("sglang", ["unproven_hash", "shared_hash"])])
def test_the_kind_says_what_events_mean(kind, reasons):
    """A second store of a held block is another copy in vLLM, and cannot be one where a block is held once."""
    one = recorder(kind=kind)
    store(one, 1, 1)
    store(one, 2, 1)
    assert one.status()["reasons"] == reasons


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "error"),
    [
        ((1,), {}, "engine", TypeError),
        (("",), {}, "engine", ValueError),
        (("\ud800",), {}, "engine", ValueError),
        (("e", -1), {}, "rank", ValueError),
        (("e", 2**32), {}, "rank", ValueError),
        (("e", 0, 0), {}, "block_size", ValueError),
        (("e", 0, "16"), {}, "block_size", TypeError),
        (("e", 0, 16, 0), {}, "max_events", ValueError),
        (("e", 0, 16, 1, -5), {}, "max_bytes", ValueError),
        (("e",), {"worker_id": 2**64}, "worker_id", ValueError),
        (("e",), {"worker_id": True}, "worker_id", TypeError),
        (("e",), {"kind": "grpc"}, "kind", ValueError),
        (("e",), {"kind": "elsewhere"}, "kind", ValueError),
        (("e",), {"on_gap": "shrug"}, "on_gap", ValueError),
        (("e",), {"max_state_bytes": 0}, "max_state_bytes", ValueError),
    ],
)
def test_settings_that_cannot_be_are_named(arguments, options, argument, error):
    with pytest.raises(error, match=f"^{argument}: ") as raised:
        kvplane.Recorder(*arguments, **options)
    assert isinstance(raised.value, kvplane.Error)
    assert (raised.value.code, raised.value.argument) == ("invalid_argument", argument)


GOOD = {"event_id": 1, "parent": None, "block_hashes": [1, 2], "token_ids": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("change", "argument", "error"),
    [
        ({"event_id": -1}, "event_id", ValueError),
        ({"event_id": 2**64}, "event_id", ValueError),
        ({"event_id": "1"}, "event_id", TypeError),
        ({"event_id": 1.0}, "event_id", TypeError),
        ({"parent": 1.5}, "parent", TypeError),
        ({"parent": b"short"}, "parent", ValueError),
        ({"parent": -(2**63) - 1}, "parent", ValueError),
        ({"block_hashes": 1}, "block_hashes", TypeError),
        ({"block_hashes": b"\1\2"}, "block_hashes", TypeError),
        ({"block_hashes": [1, None]}, r"block_hashes\[1\]", TypeError),
        ({"block_hashes": [1, 2**64]}, r"block_hashes\[1\]", ValueError),
        ({"block_hashes": [b"x" * 31, 1]}, r"block_hashes\[0\]", ValueError),
        ({"block_hashes": ["f" * 63, 1]}, r"block_hashes\[0\]", ValueError),
        ({"block_hashes": ["g" * 64, 1]}, r"block_hashes\[0\]", ValueError),
        ({"token_ids": [1, 2, 3, -4]}, r"token_ids\[3\]", ValueError),
        ({"token_ids": [1, 2, 3, 2**32]}, r"token_ids\[3\]", ValueError),
        ({"token_ids": [1, 2, "3", 4]}, r"token_ids\[2\]", TypeError),
        ({"token_ids": "1234"}, "token_ids", TypeError),
        ({"token_ids": None}, "token_ids", TypeError),
        ({"token_ids": [(1, 2), 3, (4, 5), (6, 7)]}, r"token_ids\[1\]", TypeError),
        ({"token_ids": [1, 2, 3]}, "token_ids", ValueError),
        ({"token_ids": [1, 2, True, 4]}, r"token_ids\[2\]", TypeError),
        ({"token_ids": bytearray(4)}, "token_ids", TypeError),
        ({"token_ids": memoryview(array("I", [1, 2, 3, 4]))}, "token_ids", TypeError),
        ({"token_ids": {1, 2, 3, 4}}, "token_ids", TypeError),
        ({"token_ids": frozenset((1, 2, 3, 4))}, "token_ids", TypeError),
        ({"token_ids": {1: 1, 2: 2, 3: 3, 4: 4}}, "token_ids", TypeError),
        ({"token_ids": {1: 1, 2: 2, 3: 3, 4: 4}.keys()}, "token_ids", TypeError),
        ({"block_hashes": {1, 2}}, "block_hashes", TypeError),
        ({"block_hashes": bytearray(2)}, "block_hashes", TypeError),
        ({"block_hashes": [False, 2]}, r"block_hashes\[0\]", TypeError),
        ({"extra_keys": {(1,), None}}, "extra_keys", TypeError),
        ({"block_size": 0}, "block_size", ValueError),
        ({"block_size": -2}, "block_size", ValueError),
        ({"medium": 3}, "medium", TypeError),
        ({"lora_id": 2**63}, "lora_id", ValueError),
        ({"group_idx": -1}, "group_idx", ValueError),
        ({"extra_keys": [None]}, "extra_keys", ValueError),
        ({"extra_keys": [None, [1.5]]}, r"extra_keys\[1\]", TypeError),
        ({"extra_keys": ["ab", None]}, r"extra_keys\[0\]", TypeError),
        ({"mediun": "GPU"}, "mediun", TypeError),
    ],
)
def test_arguments_that_cannot_be_are_named_and_change_nothing(change, argument, error):
    one = recorder()
    with pytest.raises(error, match=f"^{argument}: ") as raised:
        one.apply_stored(**{**GOOD, **change})
    assert isinstance(raised.value, kvplane.Error) and raised.value.code == "invalid_argument"
    assert one.status()["applied"] == 0
    one.apply_stored(**GOOD)
    assert one.status()["trust"] == "exact"


class Scalar:
    """An int as libraries for arrays have them."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("sequence", [tuple, lambda ints: array("Q", ints), lambda ints: array("I", ints), lambda ints: map(Scalar, ints), deque])
def test_sequences_of_every_kind(sequence):
    one, other = recorder(), recorder()
    one.apply_stored(1, Scalar(9), sequence([1, 2]), sequence([1, 2, 3, 4]))
    other.apply_stored(1, 9, [1, 2], [1, 2, 3, 4])
    assert one.digest() == other.digest() and held(one) == held(other)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: recorder(from_start="yes"), "from_start"),
        (lambda: recorder(from_start=None), None),
        (lambda: kvplane.encode([], timestamp="now"), "timestamp"),
        (lambda: kvplane.encode([], timestamp=10**400), "timestamp"),
        (lambda: kvplane.encode([], profile=3), "profile"),
        (lambda: kvplane.encode([], profile="none"), "profile"),
        (lambda: kvplane.Index().add("e", "m"), "recorder"),
        (lambda: kvplane.Index().remove(None), "recorder"),
        (lambda: kvplane.serve_recovery("e"), "recorder"),
        (lambda: kvplane.Client("127.0.0.1:1", down_after="soon"), "down_after"),
        (lambda: kvplane.Client("127.0.0.1:1", down_after=True), "down_after"),
    ],
)
def test_whatever_is_wrong_is_named(call, argument):
    if argument is None:
        call()
        return
    with pytest.raises((TypeError, ValueError), match=f"^{argument}: ") as raised:
        call()
    assert isinstance(raised.value, kvplane.Error)
    assert (raised.value.code, raised.value.argument) == ("invalid_argument", argument)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [(b"", "truncated"), (b"\xc1", "not_msgpack"), (b"\x90", "not_a_batch"), (b"\x92\x00\x91", "truncated"), (b"\x92\x00\x90\x00", "trailing_bytes"),
     (b"\x92\x00\x91\x92\xacBlockRemoved\x92\x01\xc1", "not_msgpack")],
)
def test_a_frame_that_cannot_be_decoded_changes_nothing(payload, reason):
    one = recorder()
    store(one, 1, 1)
    before = one.get_events_json(), one.digest()
    with pytest.raises(kvplane.DecodeError) as raised:
        one.apply_frame(2, payload)
    assert (raised.value.reason, raised.value.code) == (reason, "invalid_argument")
    assert isinstance(raised.value, ValueError)
    assert (one.get_events_json(), one.digest()) == before
    assert one.status()["undecodable"] == 1
    # Its number is still to be had. Whoever goes on with the next has a gap.
    store(one, 3, 3)
    assert one.status()["reasons"] == ["gap"]


def test_payloads_of_every_kind_of_bytes():
    frame = kvplane.encode([{"type": "AllBlocksCleared"}])
    one = recorder()
    for number, payload in enumerate((frame, bytearray(frame), memoryview(frame), memoryview(bytearray(frame)))):
        assert one.apply_frame(number, payload) == number
    for other in ("text", [1], None, 5):
        with pytest.raises(TypeError, match="^payload: "):
            one.apply_frame(9, other)


def test_any_thread_may_call():
    one = recorder(max_events=100_000)
    threads, calls = 8, 200

    def work(thread):
        for at in range(calls):
            hash = thread * calls + at + 1
            number = store(one, None, hash)
            assert number is not None
            if at % 10 == 0:
                one.get_events_json(number)
                len(one.snapshot())

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert held(one) == set(range(1, threads * calls + 1))
    status = one.status()
    assert (status["trust"], status["applied"], status["gaps"]) == ("exact", threads * calls, 0)
