"""Faults between an engine and a server, with kvplane between them, and with the original sidecar.

What the server believes is compared with what the engine holds. With kvplane both are equal. With the original they are not:
that shows that the comparison would see it.
"""

import itertools

import grpc
import pytest

from harness.inference_cache.index import fingerprints
from harness.inference_cache.truth import load, truth
from harness.plane import http
from harness.wait import eventually
from harness.wire import NEWEST

WHOSE = ("t", "m", "r")
_markers = itertools.count(50_000)


def restart(sim, server):
    sim.fault(restart={"first_sequence": 0, "same_content": False})


def overtake(sim, server):
    sim.fault(restart={"first_sequence": 60, "same_content": True})


def lose_frames(sim, server):
    sim.fault(drop=3)


def restart_server(sim, server):
    server.restart()


def refuse_for_a_while(sim, server):
    before = len(server.heard)
    server.refuse(grpc.StatusCode.UNAVAILABLE)
    load(sim, 3, 7_000)
    eventually(lambda: len(server.heard) > before, "a call that is refused")
    server.refuse(None)


def forget(sim, server):
    server.forget()


# The fault, and what the original is left with: believed and not held, or held and not believed.
FAULTS = {
    "the engine restarts": (restart, "phantoms"),
    "the engine restarts and overtakes": (overtake, "phantoms"),
    "frames are lost": (lose_frames, "either"),
    "the server restarts": (restart_server, "missing"),
    "calls fail for a while": (refuse_for_a_while, "missing"),
    "the server forgets": (forget, "missing"),
}


def believed(server):
    return {key: tokens for key, (tokens, _) in server.held(WHOSE).items()}


@pytest.mark.parametrize("fault", [fault for fault, _ in FAULTS.values()], ids=FAULTS.keys())
def test_kvplane_tells_what_the_engine_holds(sim, reporter, original_server, fault):
    server, one = original_server(), sim("--blocks", 64)
    reporter(one, server.address, "--refresh", "1s")
    load(one, 12, 1_000)
    eventually(lambda: believed(server) == truth(one), lambda: (believed(server), truth(one)))
    fault(one, server)
    load(one, 6, 2_000)
    expected = truth(one)
    eventually(lambda: believed(server) == expected, lambda: difference(server, expected))


def difference(server, expected):
    held = believed(server)
    return f"{len(held.keys() - expected.keys())} phantoms, {len(expected.keys() - held.keys())} missing of {len(expected)}"


@pytest.mark.parametrize(("name", "fault", "left"), [(name, *row) for name, row in FAULTS.items()], ids=FAULTS.keys())
def test_the_original_does_not(sim, original_subscriber, original_server, report, name, fault, left):
    server, one = original_server(), sim("--blocks", 64)
    original_subscriber(one.events[0], server.address, replica="r", model="m", tenant="t", window=0.05)
    told(one, server)
    http("POST", one.http + "/reset_prefix_cache")
    load(one, 12, 1_000)
    told(one, server)
    expected = truth(one)
    assert believed(server) == expected, "before anything went wrong it is right"
    fault(one, server)
    load(one, 6, 2_000)
    told(one, server)
    expected, held = truth(one), believed(server)
    phantoms, missing = held.keys() - expected.keys(), expected.keys() - held.keys()
    report(f"{name}: the original's server believes {len(phantoms)} prefixes that are not held, and misses {len(missing)} of {len(expected)}")
    wrong = {"phantoms": phantoms, "missing": missing, "either": phantoms | missing}
    assert wrong[left]


def told(sim, server):
    """Waits until all is told that was published before: a prompt of its own has come through."""

    def marked():
        prompt = [next(_markers)] * 32
        sim.complete(prompt, 1)
        marks = {("", hash) for hash in fingerprints(prompt)}
        try:
            eventually(lambda: marks <= server.held(WHOSE).keys(), "", 0.5)
        except AssertionError:
            return False  # published before anybody listened again
        return True

    eventually(marked, "a prompt that comes through")


def test_what_is_lost_for_good_is_not_claimed(engine, reporter, original_server):
    """Without a replay socket nobody can say what a lost frame said."""
    server, one = original_server(), engine(has_replay=False, synchronised=True)
    reporter(one, server.address)
    eventually(one.has_subscriber, "a subscription")
    held = lambda: {hash for _, hash in server.held(WHOSE)}
    prefix = lambda token: fingerprints([token] * 16)[0]
    one.publish(NEWEST.stored([1], None, [1] * 16, 16), NEWEST.stored([2], None, [2] * 16, 16))
    eventually(lambda: held() == {prefix(1), prefix(2)}, held)
    one.publish(NEWEST.removed([1]), live=False, ring=False)
    one.publish(NEWEST.stored([3], None, [3] * 16, 16))
    eventually(lambda: held() == {prefix(3)}, held)
    # A suffix of something that was lost is not taken for the start of a prompt.
    one.publish(NEWEST.stored([4], None, [4] * 16, 16), live=False, ring=False)
    one.publish(NEWEST.stored([5], 4, [5] * 16, 16))
    one.publish(NEWEST.stored([6], None, [6] * 16, 16))
    eventually(lambda: held() == {prefix(6)}, held)
