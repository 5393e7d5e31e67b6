"""SGLang and TokenSpeed as they are: events declared, encoded, published and replayed by the releases' own code."""

import random

import msgspec
import pytest
import zmq

from harness.plane import http
from harness.reference import Copies
from harness.releases import Release, load, page_hashes

SGLANG = ["sglang-0.4.6.post5", "sglang-0.4.7", "sglang-0.5.9", "sglang-0.5.22"]
ALL = [*SGLANG, "tokenspeed-0.1.1"]
PAGE = 4


@pytest.fixture
def release(engine):
    return lambda name, **options: engine.keep(Release(name, **options))


def script(one):
    """A life: a clear where the engine has it, two prompts that share a page, an eviction, a page again."""
    signed = one.software == "sglang"
    first, second = list(range(100, 112)), [*range(100, 104), *range(200, 208)]
    a, b = page_hashes(first, PAGE, signed), page_hashes(second, PAGE, signed)
    batches = [
        [one.stored(a, None, first, PAGE)],
        [one.stored(b[1:], b[0], second[PAGE:], PAGE)],
        [one.removed(b[1:])],
        [one.stored(b[1:2], b[0], second[PAGE : 2 * PAGE], PAGE)],
    ]
    return [[one.cleared()], *batches] if signed else batches


def check(plane, expected, last):
    status = plane.wait_at(last)
    assert (status["trust"], status["reason"]) == ("exact", None)
    assert status["block_size"] == PAGE
    counters = status["counters"]
    assert (counters["unknown_fields"], counters["unknown_events"], counters["rejected"]) == (0, 0, {})
    assert counters["unknown_removals"] == 0
    assert plane.copies() == expected.as_dict()
    return status


@pytest.mark.parametrize("name", ALL)
def test_a_life_live_and_for_a_late_joiner(release, plane, name):
    one = release(name)
    early = plane(one)
    expected = Copies()
    for batch in script(one):
        last = one.publish(*batch)
        expected.apply(batch)
    assert len(expected.hashes()) == 4
    check(early, expected, last)
    late = plane(one)
    status = check(late, expected, last)
    assert status["counters"]["replayed_batches"] == last + 1


@pytest.mark.parametrize("name", SGLANG[2:])
def test_the_host_tier_and_pairs_of_tokens(release, plane, name):
    one = release(name)
    tokens = list(range(50, 59))
    hashes = page_hashes(tokens, PAGE, pairs=True)
    pairs = list(zip(tokens, tokens[1:]))
    batches = [
        [one.cleared(), one.stored(hashes, None, pairs, PAGE)],
        [one.stored(hashes, None, pairs, PAGE, medium="CPU_PINNED")],
        [one.removed(hashes[1:])],
    ]
    expected = Copies()
    for batch in batches:
        last = one.publish(*batch)
        expected.apply(batch)
    p = plane(one)
    status = check(p, expected, last)
    assert (status["blocks"]["device"], status["blocks"]["host"]) == (1, 2)


def test_salts_and_adapters_of_the_newest(release, plane):
    one = release(SGLANG[-1])
    tokens = list(range(8))
    plain, salted = page_hashes(tokens, PAGE), page_hashes(tokens, PAGE, salt="tenant-A")
    assert (plain[0], salted[0]) == (-4977211910723114241, -6640336196978890403)
    seed = one.module.kv_event_namespace_seed(extra_key="lora-a", cache_salt=None)
    adapted = [one.module.namespaced_block_hash(value, namespace_seed=seed) for value in plain]
    batch = [
        one.cleared(),
        one.stored(plain, None, tokens, PAGE),
        one.stored(salted, None, tokens, PAGE, cache_salt="tenant-A", session_id="s"),
        one.stored(adapted, None, tokens, PAGE, lora_name="lora-a"),
    ]
    last = one.publish(*batch)
    expected = Copies()
    expected.apply(batch)
    p = plane(one, model="m")
    check(p, expected, last)

    for keys, tokens_held in (({}, 8), ({"cache_salt": "tenant-A"}, 8), ({"lora_name": "lora-a"}, 8), ({"cache_salt": "B"}, 0)):
        status, answer = http("POST", f"{p.http}/v1/query", {"model": "m", "token_ids": [*tokens, 9], **keys})
        assert (status, answer["trust"]) == (200, "exact")
        assert sum(match["tokens"] for match in answer["matches"]) == tokens_held, keys


@pytest.mark.parametrize("name", ALL)
def test_the_simulator_writes_what_the_release_would(sim, name):
    """Its payloads, read into the release's own structs and written again, are the same bytes."""
    profile = name.removesuffix(".post5")
    s = sim("--profile", profile, "--blocks", 40, "--block-size", 8, "--seed", 3)
    dice = random.Random(1)
    prefix = [dice.randrange(30_000) for _ in range(40)]
    for _ in range(40):
        s.complete(prefix[: dice.randrange(8, 40)] + [dice.randrange(30_000) for _ in range(30)], dice.randrange(1, 24))
    state, next_sequence = s.state()
    module = load(name)
    copies, kinds = Copies(), set()
    batches = replayed(s.replay[0], has_topic=name == SGLANG[-1])
    assert len(batches) == next_sequence
    for payload in batches:
        batch = msgspec.msgpack.decode(payload, type=module.KVEventBatch)
        assert msgspec.msgpack.encode(batch) == payload
        kinds.update(type(event).__name__ for event in batch.events)
        copies.apply(batch.events)
    assert kinds == {"BlockStored", "BlockRemoved"} | ({"AllBlocksCleared"} if name in SGLANG else set())
    assert {hash: n for (_, _, hash), n in copies.count.items()} == state


def replayed(endpoint, has_topic):
    """Everything that a replay socket has."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send_multipart([b"", bytes(8)])
        payloads = []
        while True:
            assert dealer.poll(10_000), "no answer"
            frames = dealer.recv_multipart()
            assert len(frames) == (4 if has_topic else 3)
            if not frames[-1]:
                return payloads
            payloads.append(frames[-1])
