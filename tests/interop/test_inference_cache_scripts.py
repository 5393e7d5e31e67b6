"""The scripted server and the scripted subscriber by themselves: what other tests are held against must be right."""

import struct

import grpc
import msgspec
import pytest

from harness.inference_cache.index import Index, Policy, fingerprints
from harness.inference_cache.subscriber import Malformed, Mapper, chain_on, decode
from harness.hashing import contents
from harness.wait import eventually
from harness.wire import LAST_ARRAYS, NEWEST

# Published with the contract: tokens, and the prefixes of their blocks of 16.
VECTORS = [
    (range(1, 17), [16863443419780771464]),
    (range(1, 33), [16863443419780771464, 12466389667045779788]),
    (range(64), [15310707395893867146, 13769157705258532664, 11879827756109914528, 3888788807566526800]),
    (range(100, 120), [10823191264391160519]),
]
NOW = 1_800_000_000.0


def wire(numbers):
    return [struct.pack(">Q", number) for number in numbers]


@pytest.mark.parametrize(("tokens", "prefixes"), VECTORS, ids=["one", "two", "four", "tail"])
def test_the_published_vectors(tokens, prefixes):
    assert fingerprints(list(tokens)) == wire(prefixes)


def test_the_published_vector_with_a_parent():
    first, second = contents(list(range(50, 82)), 16)
    one = chain_on(3735928559, first)
    assert [one, chain_on(one, second)] == [13185224009891017151, 2998384554010166533]


# --- the server ---------------------------------------------------------------------------------------------------


class Told:
    """An index with a clock that stands, and short words for what it is told and asked."""

    def __init__(self, pb, **policy):
        self.pb, self.now = pb, NOW
        self.index = Index(lambda: self.now, Policy(**policy))

    def holds(self, replica, tokens, upto=None, **names):
        update = self.pb.CacheStateUpdate(replica_id=replica, **{**self.names(), **names})
        for depth, hash in enumerate(fingerprints(tokens)[:upto], 1):
            update.prefixes.add(prefix_hash=hash, token_count=16 * depth)
        self.index.report(update)
        return self

    def stats(self, replica, **stats):
        names = {**self.names(), "hash_scheme": ""}
        self.index.report(self.pb.CacheStateUpdate(replica_id=replica, stats=self.pb.ReplicaStats(**stats), **names))
        return self

    def names(self):
        return {"tenant_id": "t", "model_id": "m", "hash_scheme": "vllm", "timestamp_us": int(self.now * 1e6)}

    def ask(self, **question):
        question = {"tenant_id": "t", "model_id": "m", "hash_scheme": "vllm", **question}
        return self.index.lookup(self.pb.LookupRouteRequest(**question))


def chain_of(tokens):
    hashes = fingerprints(tokens)
    return {"block_hashes": hashes, "block_token_counts": [16] * len(hashes)}


LONG = list(range(128))
OTHER = list(range(1000, 1128))

# What is known, what is asked, the reason code, and (replica, tokens) of the answer.
TABLE = {
    "a chain": (lambda t: t.holds("a", LONG), chain_of(LONG), "PREFIX_MATCH", [("a", 128)]),
    "a part of it": (lambda t: t.holds("a", LONG, 5).holds("b", OTHER), chain_of(LONG), "PREFIX_MATCH", [("a", 80)]),
    "tokens": (lambda t: t.holds("a", LONG), {"token_ids": LONG}, "PREFIX_MATCH", [("a", 128)]),
    "one hash": (
        lambda t: t.holds("a", LONG), {"prefix_hash": fingerprints(LONG)[-1], "prefix_token_count": 128},
        "PREFIX_MATCH", [("a", 128)],
    ),
    "the deeper is the better": (
        lambda t: t.holds("a", LONG, 5).holds("b", LONG, 6).holds("c", OTHER), chain_of(LONG), "PREFIX_MATCH",
        [("b", 96), ("a", 80)],
    ),
    "below the least match": (lambda t: t.holds("a", LONG, 3), chain_of(LONG), "AFFINITY_HINT", [("a", 0)]),
    "everybody holds it": (
        lambda t: t.holds("a", LONG).holds("b", LONG), chain_of(LONG), "AFFINITY_HINT", None,
    ),
    "an empty index": (lambda t: t, chain_of(LONG), "NO_HINT", []),
    "an unknown tenant": (lambda t: t.holds("a", LONG), {**chain_of(LONG), "tenant_id": "u"}, "UNKNOWN_TENANT", []),
    "an unknown model": (lambda t: t.holds("a", LONG), {**chain_of(LONG), "model_id": "n"}, "UNKNOWN_MODEL", []),
    "an unknown scheme": (
        lambda t: t.holds("a", LONG), {**chain_of(LONG), "hash_scheme": "sglang"}, "UNKNOWN_HASH_SCHEME", [],
    ),
    "no tenant": (lambda t: t.holds("a", LONG), {**chain_of(LONG), "tenant_id": ""}, "NO_HINT", []),
    "the probes' tenant": (
        lambda t: t.holds("a", LONG), {**chain_of(LONG), "tenant_id": "inferencecache.io/probe"}, "NO_HINT", [],
    ),
    "unequal arrays": (lambda t: t.holds("a", LONG), {"block_hashes": fingerprints(LONG)}, "NO_HINT", []),
    "less than a block": (lambda t: t.holds("a", LONG), {"token_ids": LONG[:15]}, "NO_HINT", []),
    "somebody warm": (
        lambda t: t.holds("a", LONG).stats("a", hit_rate=0.5), {"prefix_hash": b"12345678"}, "TENANT_HOT", [("a", 0)],
    ),
    "nobody is warm for a chain": (
        lambda t: t.holds("a", LONG).stats("a", hit_rate=0.5), chain_of(OTHER), "AFFINITY_HINT", [("a", 0)],
    ),
    "another adapter": (
        lambda t: t.holds("a", LONG), {**chain_of(LONG), "adapter_id": "sql"}, "AFFINITY_HINT", [("a", 0)],
    ),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
def test_the_order_of_gates(pb, row):
    prepare, question, reason, expected = row
    answer = prepare(Told(pb)).ask(**question)
    assert answer.reason == reason
    if expected is not None:
        assert [(score.replica, score.matched_tokens) for score in answer.scores] == expected


@pytest.mark.parametrize(
    ("policy", "question", "reason"),
    [
        ({"require_chain": True}, {"token_ids": LONG}, "POLICY_REQUIRES_CHAIN"),
        ({"require_chain": True}, chain_of(LONG), "PREFIX_MATCH"),
        ({"affinity_routing": False}, chain_of(OTHER), "NO_HINT"),
        ({"minimum_prefix_tokens": 129}, chain_of(LONG), "AFFINITY_HINT"),
        ({"minimum_prefix_tokens": 129, "affinity_routing": False}, chain_of(LONG), "NO_HINT"),
        ({"routing_floor_score": 1e6}, chain_of(LONG), "AFFINITY_HINT"),
        ({"chain_matching": False}, {"token_ids": LONG}, "PREFIX_MATCH"),
        ({"chain_matching": False}, {"token_ids": LONG + OTHER}, "AFFINITY_HINT"),
    ],
)
def test_what_a_policy_changes(pb, policy, question, reason):
    assert Told(pb, **policy).holds("a", LONG).ask(**question).reason == reason


def test_scores_are_tokens_by_freshness_room_urgency_and_distinction(pb):
    told = Told(pb).holds("a", LONG).holds("b", OTHER).stats("a", pressure=0.25)
    told.now += 450.0  # a quarter of the time that entries last
    (score,) = told.ask(**chain_of(LONG)).scores
    assert score.probability == pytest.approx(0.75)
    assert score.score == pytest.approx(128 * 0.75 * 0.75 * 0.5)
    (score,) = told.ask(**chain_of(LONG), slo=pb.SLO(ttft_ms=199)).scores
    assert score.score == pytest.approx(128 * 0.75 * 0.75 * 0.5 * 1.75)
    (score,) = told.ask(**chain_of(LONG), slo=pb.SLO(ttft_ms=200)).scores
    assert score.score == pytest.approx(128 * 0.75 * 0.75 * 0.5)


def test_what_is_not_told_again_is_forgotten(pb):
    told = Told(pb).holds("a", LONG)
    told.now += 1700.0
    assert told.ask(**chain_of(LONG)).reason == "PREFIX_MATCH"
    told.now += 100.0
    assert told.ask(**chain_of(LONG)).reason == "AFFINITY_HINT", "stale, and not yet swept"
    told.index.sweep()
    assert told.ask(**chain_of(LONG)).reason == "NO_HINT"


# --- the subscriber -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [LAST_ARRAYS, NEWEST], ids=str)
def test_a_chain_over_several_events(version):
    mapper = Mapper()
    first = version.stored([1, 2], None, list(range(32)), 16)
    second = version.stored([3, 4], 2, list(range(32, 64)), 16)
    changes = list(mapper.map(version.encode(1.0, [first, second])))
    assert [block.wire for _, block, _ in changes] == wire(VECTORS[2][1])
    assert [block.tokens for _, block, _ in changes] == [16, 32, 48, 64]


def test_an_unknown_parent_is_taken_for_none():
    mapper = Mapper()
    lost = NEWEST.stored([3], 2, list(range(16)), 16)
    ((_, block, _),) = mapper.map(NEWEST.encode(1.0, [lost]))
    assert (block.wire, block.tokens) == (fingerprints(list(range(16)))[0], 16), "a prefix that nobody holds"


def test_removals_and_clears():
    mapper = Mapper()
    stored = NEWEST.stored([1, 2], None, list(range(32)), 16)
    events = [stored, NEWEST.removed([2, 9]), NEWEST.cleared(), NEWEST.removed([1])]
    assert [what for what, _, _ in mapper.map(NEWEST.encode(1.0, events))] == ["add", "add", "evict", "clear"]


def test_adapters_are_named_or_dropped():
    mapper = Mapper({1: "sql"})
    store = lambda hash, id: NEWEST.stored([hash], None, list(range(16)), 16, lora_id=id)
    changes = list(mapper.map(NEWEST.encode(1.0, [store(1, 1), store(2, 2), store(3, None)])))
    assert [block.adapter for _, block, _ in changes] == ["sql", ""]
    assert mapper.dropped == 1


def test_one_bad_event_spoils_the_batch():
    good = {"type": "BlockStored", "block_hashes": [1], "token_ids": [1] * 16, "block_size": 16}
    encode = lambda *events: msgspec.msgpack.encode([1.0, list(events)])
    assert len(decode(encode(good, {"type": "Unheard"}, good))[1]) == 2
    for bad in [{**good, "block_size": 0}, {**good, "token_ids": [-1]}, {"type": "BlockStored"}, 7, {**good, "lora_id": "x"}]:
        with pytest.raises(Malformed):
            decode(encode(good, bad))


def test_the_one_tells_the_other(pb, engine, original_server, original_subscriber):
    server, one = original_server(), engine(synchronised=True)
    whose = ("t", "m", "r")
    told = original_subscriber(one.events, server.address, replica="r", model="m", tenant="t", window=0.02)
    eventually(one.has_subscriber, "a subscription")
    one.publish(NEWEST.stored([1, 2], None, list(range(32)), 16))
    first, second = fingerprints(list(range(32)))
    eventually(lambda: server.held(whose) == {("", first): (16, 1), ("", second): (32, 1)}, lambda: server.held(whose))
    one.publish(NEWEST.removed([2]))
    eventually(lambda: server.held(whose) == {("", first): (16, 1)}, lambda: server.held(whose))
    assert told.tell_stats(hit_rate=0.5)
    assert server.stats(whose).hit_rate == 0.5
    one.publish(NEWEST.cleared())
    eventually(lambda: not server.held(whose) and server.stats(whose) is None, lambda: server.held(whose))
    assert all(0 < heard.time_left <= 5.1 for heard in server.heard)


def test_the_servers_switches(pb, original_server):
    server = original_server()
    update = pb.CacheStateUpdate(replica_id="r", model_id="m", tenant_id="t", hash_scheme="vllm")
    update.prefixes.add(prefix_hash=b"12345678", token_count=16)
    tell = lambda seconds=5: server.stub().ReportCacheState(iter([update]), timeout=seconds, wait_for_ready=True)
    assert tell().accepted and len(server.held(("t", "m", "r"))) == 1
    server.restart()
    assert server.held(("t", "m", "r")) == {}
    server.refuse(False)
    assert not tell().accepted and server.held(("t", "m", "r")) == {}
    server.refuse(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(grpc.RpcError):
        tell()
    server.refuse(None)
    server.stall()
    with pytest.raises(grpc.RpcError) as error:
        tell(0.1)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    held = server.stub().ReportCacheState.future(iter([update]), timeout=10)
    eventually(lambda: len(server.heard) == 5, lambda: len(server.heard))
    assert server.held(("t", "m", "r")) == {}
    server.lift()
    assert held.result().accepted and len(server.held(("t", "m", "r"))) == 1
    server.forget()
    assert server.held(("t", "m", "r")) == {}
