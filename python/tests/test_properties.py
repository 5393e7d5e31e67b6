"""Whatever is handed over: an exception with a code or a record, never a panic, and never half of something."""

import json
from collections import Counter

import pytest
from harness.captures import Capture
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvplane

FRAMES = [payload for name in ("vllm-0.32.0", "sglang-0.5.23") for payload in Capture(name).payloads[:40]]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
hashes = st.integers(-(2**63), 2**64 - 1) | st.binary(min_size=16, max_size=16) | st.binary(min_size=32, max_size=32)
texts = st.none() | st.text(max_size=8)


@st.composite
def damaged(draw):
    """A real frame with some of its bytes changed, cut off or doubled."""
    frame = bytearray(draw(st.sampled_from(FRAMES)))
    for _ in range(draw(st.integers(0, 4))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(frame)) | st.just(len(frame)))
    return bytes(frame[:cut]) + draw(st.just(b"") | st.binary(max_size=8))


@settings(max_examples=300)
@given(payload=st.binary(max_size=200) | damaged())
def test_any_bytes_are_recorded_or_refused_whole(payload):
    recorder = kvplane.Recorder("e")
    recorder.apply_stored(0, None, [1], [1, 2], block_size=2)
    before = recorder.get_events_json(), recorder.digest(), recorder.status()["last_event_id"]
    try:
        recorder.apply_frame(1, payload)
    except kvplane.DecodeError as error:
        assert error.reason in {"truncated", "not_msgpack", "not_a_batch", "trailing_bytes"}
        assert (recorder.get_events_json(), recorder.digest(), recorder.status()["last_event_id"]) == before
        with pytest.raises(kvplane.DecodeError):
            kvplane.decode(payload)
    else:
        assert recorder.status()["last_event_id"] == 1
        assert isinstance(kvplane.decode(payload)["events"], list)
    json.loads(recorder.get_events_json(1))


@settings(max_examples=300)
@given(arguments=st.lists(anything, min_size=4, max_size=4), details=st.dictionaries(
    st.sampled_from(["block_size", "medium", "extra_keys", "lora_id", "group_idx", "session_id", "what"]), anything, max_size=3))
def test_any_arguments_are_recorded_or_refused(arguments, details):
    recorder = kvplane.Recorder("e", block_size=2)
    for call in (
        lambda: recorder.apply_stored(*arguments, **details),
        lambda: recorder.apply_removed(*arguments[:2], **details),
        lambda: recorder.apply_cleared(arguments[0]),
        lambda: recorder.apply_frame(*arguments[:2]),
        lambda: recorder.get_events_json(*arguments[:2]),
        lambda: kvplane.encode(arguments[0], rank=arguments[1]),
        lambda: kvplane.decode(arguments[0]),
        lambda: kvplane.Recorder(arguments[0], **{name: details[name] for name in details if name == "block_size"}),
    ):
        try:
            call()
        except kvplane.Error as error:
            assert error.code in {"invalid_argument", "conflict"}
    json.loads(recorder.get_events_json())


@st.composite
def events(draw):
    """Events that any of the newest engines could send."""
    kind = draw(st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]))
    if kind == "AllBlocksCleared":
        return {"type": kind}
    blocks = draw(st.lists(hashes, max_size=4))
    place = {"medium": draw(texts), "group_idx": draw(st.none() | st.integers(0, 2**32 - 1)), "locality": draw(texts), "ownership": draw(texts)}
    if kind == "BlockRemoved":
        return {"type": kind, "block_hashes": blocks, **place}
    size = draw(st.integers(1, 4))
    tokens = st.lists(st.integers(0, 2**32 - 1), min_size=len(blocks) * size, max_size=len(blocks) * size)
    # A list without a single key is written as none.
    key = st.text(max_size=4) | st.binary(max_size=4) | st.integers(-(2**63), 2**63 - 1) | st.tuples(st.text(max_size=4), st.integers(-9, 9))
    keys = st.lists(st.none() | st.lists(key, min_size=1, max_size=2), min_size=len(blocks), max_size=len(blocks))
    return {
        "type": kind, "block_hashes": blocks, "parent_block_hash": draw(st.none() | hashes), "token_ids": draw(tokens), "block_size": size,
        "lora_id": draw(st.none() | st.integers(-(2**63), 2**63 - 1)), "lora_name": draw(texts), "cache_salt": None,
        "extra_keys": draw(st.none() | keys), "kv_cache_spec_kind": draw(texts), "kv_cache_spec_sliding_window": draw(st.none() | st.integers(0, 9)),
        "session_id": draw(texts), **place,
    }


@settings(max_examples=200)
@given(batch=st.lists(events(), max_size=5), rank=st.none() | st.integers(0, 9), timestamp=st.floats(0, 1e10))
def test_what_is_encoded_is_decoded(batch, rank, timestamp):
    payload = kvplane.encode(batch, rank=rank, timestamp=timestamp)
    decoded = kvplane.decode(payload)
    assert decoded == {"timestamp": timestamp, "rank": rank, "events": batch, "unknown_fields": 0}
    kvplane.Recorder("e").apply_frame(0, payload)


class Copies(RuleBasedStateMachine):
    """Any history of stores, removals and clears of one tier against a count of copies."""

    @initialize()
    def begin(self):
        self.recorder = kvplane.Recorder("e", block_size=1, max_events=7)
        self.copies = Counter()
        self.last = None

    def _taken(self, number):
        assert self.last in (None, number - 1)
        self.last = number

    @rule(chain=st.lists(st.integers(1, 30), min_size=1, max_size=5, unique=True))
    def store(self, chain):
        # A hash is its place in one long prompt, as an engine's are.
        chain = sorted(chain)
        for hash in range(chain[0], chain[-1] + 1):
            self._taken(self.recorder.apply_stored(None, None if hash == 1 else hash - 1, [hash], [hash]))
            self.copies[hash] += 1

    @rule(hash=st.integers(1, 30))
    def remove(self, hash):
        if self.copies[hash]:
            self._taken(self.recorder.apply_removed(None, [hash]))
            self.copies[hash] -= 1

    @rule()
    def clear(self):
        self._taken(self.recorder.apply_cleared(None))
        self.copies.clear()

    @invariant()
    def holds_what_was_stored(self):
        if self.last is None:
            return
        snapshot = self.recorder.snapshot()
        held = {block["block_hash"]: block["held"][0]["copies"] for block in snapshot}
        # What a store builds on is held too: a store proves it.
        assert {hash: copies for hash, copies in self.copies.items() if copies}.items() <= held.items()
        assert snapshot.last_event_id == self.last


TestCopies = Copies.TestCase
TestCopies.settings = settings(max_examples=40, stateful_step_count=25)
