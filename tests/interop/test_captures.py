"""Recorded frames of real engines, republished byte for byte: kvplane must end where the engine was."""

import grpc
import pytest

from harness.captures import Capture, events
from harness.reference import Copies, Presence
from harness.replica import Replica
from harness.wire import NEWEST

VLLM = ["vllm-0.32.0", "vllm-0.32.0-oracle", "vllm-0.32.0-hybrid-oracle"]
ALL = [*VLLM, "sglang-0.5.23"]


def reference(capture, typed):
    """The state after every sequence."""
    copies, states = Copies(), []
    for payload in capture.payloads:
        copies.apply(events(payload, typed))
        states.append(copies.as_dict())
    return states


def main_group(state):
    return {hash for tier, group, hash in state if tier == "device" and group in (0, None)}


@pytest.mark.parametrize("name", ALL)
def test_live_and_late(engine, plane, name):
    capture = Capture(name)
    states = reference(capture, typed=name in VLLM)
    one = engine(NEWEST, topic=capture.topic)
    p = plane(one)
    presence = Presence()
    checked = max(1, len(states) // 9)
    for sequence, payload in enumerate(capture.payloads):
        assert one.publish_payload(payload) == sequence
        if sequence % checked == 0 or sequence == len(states) - 1:
            status = p.wait_at(sequence)
            assert (status["trust"], status["counters"]["rejected"], status["counters"]["unknown_fields"]) == ("exact", {}, 0)
            assert p.copies() == states[sequence], sequence
            presence.catch_up(p)
            if name != "vllm-0.32.0-hybrid-oracle":
                assert presence.device() == main_group(states[sequence]), sequence
    assert presence.dumps == 1, "the rest came as events"
    assert status["counters"]["gaps_unfilled"] == 0

    late = plane(one)
    status = late.wait_at(len(states) - 1)
    assert status["trust"] == "exact"
    assert late.copies() == p.copies()
    dumped = Presence()
    dumped.catch_up(late)
    assert dumped.tiers["device"] == presence.tiers["device"], "a late joiner is told the same, content hashes included"


def test_the_hybrid_engines_main_group_is_what_peers_are_told(engine, plane):
    """The group of full attention is not group 0 in this model."""
    capture = Capture("vllm-0.32.0-hybrid-oracle")
    one = engine(NEWEST, topic=capture.topic)
    full = set()
    for payload in capture.payloads:
        last = one.publish_payload(payload)
        full |= {e.group_idx for e in events(payload) if getattr(e, "kv_cache_spec_kind", None) == "full_attention"}
    p = plane(one)
    p.wait_at(last)
    presence = Presence()
    presence.catch_up(p)
    assert len(full) == 1
    state = reference(capture, True)[-1]
    assert presence.device() == {hash for tier, group, hash in state if group in full}


@pytest.mark.parametrize(("name", "right", "asked"), [("vllm-0.32.0-oracle", 128, 129), ("vllm-0.32.0-hybrid-oracle", 58, 58)])
def test_a_subscriber_predicts_what_the_engine_then_did(engine, plane, stubs, name, right, asked):
    """A replica fed by kvplane.v1 alone, asked before every request of the recording."""
    capture = Capture(name)
    states = reference(capture, typed=True)
    one = engine(NEWEST, topic=capture.topic)
    p = plane(one)
    p.wait_live()
    replica, hits, total, misses = Replica(), 0, 0, []
    with grpc.insecure_channel(p.grpc) as channel:
        messages = stubs.PlaneStub(channel).Subscribe(stubs.SubscribeRequest(), timeout=60)
        published = 0
        for earlier, request, cached in capture.truths():
            while published < earlier:
                one.publish_payload(capture.payloads[published])
                published += 1
            while not replica.complete or (earlier and replica.engine_sequence != earlier - 1):
                replica.apply(next(messages), stubs)
            if earlier:
                assert replica.copies == states[earlier - 1]
            total += 1
            predicted = replica.predict(request["prompt_token_ids"], request["cache_salt"])
            hits += predicted == cached
            if predicted != cached:
                misses.append((request["step"], predicted, cached))
    assert (hits, total) == (right, asked), misses
    assert replica.trust == "exact"


@pytest.mark.parametrize("name", VLLM)
def test_frames_lost_here_and_there(engine, plane, name):
    """Every third frame is not sent live; the ring has it."""
    capture = Capture(name)
    one = engine(NEWEST, topic=capture.topic)
    p = plane(one)
    p.wait_live()
    for sequence, payload in enumerate(capture.payloads):
        last = one.publish_payload(payload, live=sequence % 3 != 1)
    status = p.wait_at(last)
    assert status["trust"] == "exact"
    assert status["counters"]["restarts"] == 0
    assert p.copies() == reference(capture, True)[-1]


@pytest.mark.parametrize("name", VLLM)
@pytest.mark.parametrize("cut", [3, 10])
def test_a_late_joiner_behind_a_cut_ring_has_no_phantoms(engine, plane, name, cut):
    capture = Capture(name)
    states = reference(capture, True)
    one = engine(NEWEST, topic=capture.topic, buffer_steps=len(states) - cut)
    for payload in capture.payloads:
        last = one.publish_payload(payload)
    # Nothing lies behind the device: a clear is of everything.
    p = plane(one, device_only="true")
    status = p.wait_at(last)
    cleared = any(type(e).__name__ == "AllBlocksCleared" for s in capture.payloads[cut:] for e in events(s))
    assert (status["trust"] == "exact") == cleared
    held = p.copies()
    phantoms = {key for key in held if key not in states[-1]}
    assert not phantoms
    if cleared:
        assert held == states[-1]
