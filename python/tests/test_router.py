"""A router that loses events, and asks: whatever went wrong, it ends where the recorder is."""

import json
import random

import pytest
from router import Replica, told_by

import kvplane

BLOCK = 4


class Cache:
    """An engine's cache: prompts share prefixes, the oldest blocks that nothing builds on are evicted."""

    def __init__(self, random):
        self._random = random
        self._held = {}  # hash -> (parent, tokens), in the order of their last use

    def step(self):
        """The next event: (name, arguments)."""
        choice = self._random.random()
        if choice < 0.02:
            self._held.clear()
            return "cleared", {}
        leaves = [hash for hash in self._held if all(parent != hash for parent, _ in self._held.values())]
        if choice < 0.4 and leaves:
            gone = leaves[: self._random.randint(1, 3)]
            for hash in gone:
                del self._held[hash]
            return "removed", {"block_hashes": gone}
        parent = self._random.choice([None, *self._held])
        hashes, tokens = [], []
        before = parent
        for _ in range(self._random.randint(1, 4)):
            hash, own = self._random.getrandbits(64), [self._random.randrange(50_000) for _ in range(BLOCK)]
            self._held[hash] = (before, own)
            hashes.append(hash)
            tokens += own
            before = hash
        return "stored", {"parent": parent, "block_hashes": hashes, "token_ids": tokens}

    def hashes(self):
        return set(self._held)


class Life:
    """One life of an engine: its cache, its recorder and the number of its next event, if it numbers them itself."""

    def __init__(self, random, first, **options):
        self.cache = Cache(random)
        self.recorder, self._publisher = (kvplane.Recorder("e", 0, BLOCK, worker_id=7, **kept) for kept in (options, {}))
        self.next = first

    def step(self, recorded=True):
        """The next event, handed to the recorder or lost before it. Returns its number and what a consumer would be told of it."""
        name, arguments = self.cache.step()
        number = self.next
        self.next = None if number is None else number + 1
        if not recorded:
            return number, None
        number = getattr(self.recorder, f"apply_{name}")(number, **arguments)
        # What the engine publishes does not depend on what the recorder keeps.
        getattr(self._publisher, f"apply_{name}")(number, **arguments)
        answer = json.loads(self._publisher.get_events_json(number))
        return number, answer["Events"]["events"]


def faulty(random, event):
    """What of an event reaches the router, and how often."""
    return [event] * random.choices((0, 1, 2), (0.15, 0.8, 0.05))[0]


@pytest.mark.parametrize("seed", range(25))
def test_a_router_ends_equal_after_random_faults(seed):
    chance = random.Random(seed)
    options = {"max_events": chance.choice([1, 5, 40, 10_000])}
    # Numbers of our own: they say which life they are of, so that a restart needs no announcement.
    life = Life(chance, None, **options)
    replica = Replica(lambda start: life.recorder.get_events_json(start), 7)
    for _ in range(400):
        if chance.random() < 0.01:
            life = Life(chance, None, **options)
        number, events = life.step()
        delayed = [] if chance.random() < 0.9 else [(number, events)]
        for event in faulty(chance, (number, events)):
            replica.hear(*event)
        if chance.random() < 0.05:
            replica.recover()
        for event in delayed:
            replica.hear(*event)
    replica.recover()
    assert replica.held() == told_by(life.recorder.snapshot())
    assert {hash for _, hash in replica.held()} == life.cache.hashes()
    assert life.recorder.status()["trust"] == "exact"


@pytest.mark.parametrize("seed", range(15))
def test_what_the_recorder_missed_is_missing_everywhere_and_nothing_is_made_up(seed):
    chance = random.Random(seed)
    life = Life(chance, 0, max_events=chance.choice([5, 10_000]))
    replica = Replica(lambda start: life.recorder.get_events_json(start), 7)
    for _ in range(300):
        number, events = life.step(recorded=chance.random() < 0.97)
        for event in faulty(chance, (number, events)) if events else []:
            replica.hear(*event)
    life.step()
    replica.recover()
    assert replica.held() == told_by(life.recorder.snapshot())
    assert {hash for _, hash in replica.held()} <= life.cache.hashes(), "no phantoms"
    # A clear after the last gap makes it whole again.
    status = life.recorder.status()
    assert status["trust"] == "lower" or {hash for _, hash in replica.held()} == life.cache.hashes()


def test_every_answer_comes_up():
    """The histories above are worth something: routers were told of everything that there is."""
    chance = random.Random(1)
    life = Life(chance, 1, max_events=5)
    replica = Replica(lambda start: life.recorder.get_events_json(start), 7)
    replica.recover()
    for at in range(60):
        event = life.step()
        if at % 4 == 0:
            replica.hear(*event)
        replica.answers += [] if at % 20 else ["mark"]
        if at % 20 == 0:
            replica.recover()
    assert {"Error", "TreeDump", "Events", "TooNew"} <= set(replica.answers)
