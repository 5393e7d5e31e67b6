"""kvplane follows an engine through SMG's own Python relay, over gRPC."""

import pytest
from harness.smg import RelayWorker, tokenizer
from harness.wait import eventually
from harness.wire import NEWEST as V


@pytest.fixture
def relay(tmp_path):
    """Makes relays."""
    made = []

    def make(engine):
        made.append(RelayWorker(tokenizer(tmp_path / "tokenizer"), engine))
        return made[-1]

    yield make
    for one in made:
        one.close()


def follow(plane, engine, relay, **keys):
    """A plane over a relay over an engine, once everybody listens."""
    words = "".join(f",{key}={value}" for key, value in keys.items())
    following = plane(args=["--engine", f"grpc=grpc://{relay.address},id=e0{words}"])
    eventually(engine.has_subscriber, "the relay's subscription")
    return following


def tokens(first, blocks):
    return list(range(first, first + 16 * blocks))


def test_what_an_engine_says_arrives_and_is_never_exact(engine, plane, relay):
    one = engine(synchronised=True)
    following = follow(plane, one, relay(one))
    one.publish(V.stored([1, 2, 2**64 - 3], None, tokens(0, 3), 16))
    one.publish(V.stored([4], 2**64 - 3, tokens(48, 1), 16), V.stored([10], None, tokens(100, 1), 16))
    one.publish(V.stored([1], None, tokens(0, 1), 16))  # a second copy
    one.publish(V.removed([4]), V.removed([1]))
    status = following.wait_at(3)
    assert (status["trust"], status["reason"], status["known_from"]) == ("unverified", "relay", 0)
    assert status["block_size"] == 16
    assert following.held() == {1, 2, 2**64 - 3, 10}
    assert status["counters"]["unknown_fields"] == 0
    assert status["trouble"] is None
    one.publish(V.cleared())
    following.wait_at(4)
    assert following.held() == set()


def test_a_restart_behind_the_relay_leaves_nothing_of_the_old_life(engine, plane, relay):
    one = engine(synchronised=True)
    following = follow(plane, one, relay(one), service="vllm")
    for at in range(4):
        one.publish(V.stored([at + 1], at or None, tokens(16 * at, 1), 16))
    before = following.wait_at(3)
    other = engine.keep(one.restarted(synchronised=True))
    eventually(other.has_subscriber, "the relay's new subscription")

    # The relay tells a restart by a number that went back, and ends the call. It keeps nothing: what it hears between two
    # calls is gone, so this is said until it arrives.
    def say():
        other.publish(V.stored([50], None, tokens(900, 1), 16))
        return following.held() == {50}

    eventually(say, lambda: f"the new life alone: {following.held()}, {following.status()}")
    after = following.status()
    assert after["epoch"] > before["epoch"]
    assert (after["trust"], after["trouble"]) == ("unverified", None)
