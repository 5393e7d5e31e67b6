"""The same words and questions to kvplane and to a server that follows the original's rules: the same answers."""

import random
import time

import pytest

from harness.inference_cache.client import Client, now_us
from harness.inference_cache.index import Policy, fingerprints

REPLICAS = ["r1", "r2", "r3", "r4", "r5"]
TENANTS, MODELS, SCHEMES, ADAPTERS = ["red", "blue"], ["m", "n"], ["vllm", "sglang"], ["", "sql"]


def prompts(dice):
    """Prompts of up to 12 blocks that share beginnings."""
    roots = [[dice.randrange(50_000) for _ in range(16 * 4)] for _ in range(3)]
    branch = lambda root: root + [dice.randrange(50_000) for _ in range(16 * dice.randrange(1, 9))]
    return [branch(root) for root in roots for _ in range(3)]


class Both:
    """Two clients that say the same."""

    def __init__(self, ours, theirs):
        self.ours, self.theirs = ours, theirs

    def call(self, method, *args, **more):
        ours, theirs = (getattr(client, method)(*args, **more) for client in (self.ours, self.theirs))
        return ours, theirs

    def told(self, method, *args, **more):
        ours, theirs = self.call(method, *args, **more)
        assert ours == theirs is not False

    def asked(self, method, *args, **more):
        ours, theirs = self.call(method, *args, **more)
        what = (method, args, more, ours, theirs)
        assert ours.reason_code == theirs.reason_code, what
        assert ours.adapter_id == theirs.adapter_id or not ours.replica_scores, what
        mine, yours = ({score.replica_id: score for score in answer.replica_scores} for answer in (ours, theirs))
        assert mine.keys() == yours.keys(), what
        for replica, score in mine.items():
            other = yours[replica]
            assert (score.matched_tokens, score.tier) == (other.matched_tokens, other.tier), what
            # The clocks of two answers are a moment apart.
            assert score.score == pytest.approx(other.score, rel=5e-3, abs=1e-3), what
            assert score.estimated_cache_hit_prob == pytest.approx(other.estimated_cache_hit_prob, abs=1e-3), what
        order = [(-score.score, score.replica_id) for score in ours.replica_scores]
        assert order == sorted(order), what
        return ours.reason_code


def scope(dice):
    return {"tenant_id": dice.choice(TENANTS), "model_id": dice.choice(MODELS)}


def a_change(dice, pb, both, known):
    """One thing that a sidecar would say, or should not."""
    names, replica = scope(dice), dice.choice(REPLICAS)
    at = now_us() - dice.randrange(1_200_000_000)
    prompt = dice.choice(known)
    hashes = fingerprints(prompt)
    depth = dice.randrange(1, len(hashes) + 1)
    scheme, adapter = dice.choice(SCHEMES), dice.choice(ADAPTERS)
    match dice.randrange(10):
        case 0 | 1 | 2 | 3:
            tier = dice.choice([0, 1, 2, 5])
            both.told("holds", replica, prompt, depth, adapter=adapter, tier=tier, scheme=scheme, timestamp_us=at, **names)
        case 4:
            chain = {"block_hashes": hashes[:depth], "block_token_counts": [16] * (depth - dice.randrange(2))}
            if dice.random() < 0.5:
                chain |= {"prefix_hash": hashes[-1], "token_count": 7}
            update = both.ours.update(replica, chain, scheme=dice.choice([*SCHEMES, ""]), timestamp_us=at, **names)
            both.told("report", update)
        case 5 | 6:
            both.told("event", "PREFIX_EVICTED", replica, prefix_hash=dice.choice(hashes), adapter_id=adapter, **names)
        case 7:
            both.told("event", dice.choice(["ALL_CLEARED", "PREFIX_ADDED", "REPLICA_UPDATED"]), replica, **names)
        case _:
            old = now_us() - dice.choice([0, 60, 200, 400]) * 1_000_000
            numbers = [0.0, 0.05, 0.3, 0.9, 1.5, -1.0, float("nan"), float("inf")]
            stats = pb.ReplicaStats(hit_rate=dice.choice(numbers[:4]), pressure=dice.choice(numbers))
            update = both.ours.update(replica, scheme="", timestamp_us=old, **names)
            update.stats.CopyFrom(stats)
            both.told("report", update)


def a_question(dice, pb, both, known):
    names = scope(dice)
    if dice.random() < 0.1:
        names |= dice.choice([{"tenant_id": "green"}, {"model_id": "o"}, {"tenant_id": ""}, {"model_id": ""}])
    prompt = dice.choice(known)
    hashes = fingerprints(prompt)
    more = {
        **names, "scheme": dice.choice([*SCHEMES, *SCHEMES, "unheard", ""]), "adapter_id": dice.choice(ADAPTERS),
        "slo": pb.SLO(ttft_ms=dice.choice([0, 100, 199, 200])),
    }
    match dice.randrange(8):
        case 0 | 1 | 2:
            return both.asked("chain", prompt[: dice.randrange(16, len(prompt) + 1)], **more)
        case 3 | 4:
            return both.asked("ask", token_ids=prompt[: dice.randrange(1, len(prompt) + 1)], **more)
        case 5 | 6:
            depth = dice.randrange(len(hashes))
            return both.asked("exact", hashes[depth], (depth + 1) * 16, **more)
        case _:
            return both.asked("ask", block_hashes=hashes, block_token_counts=[16] * dice.randrange(len(hashes) + 1), **more)


POLICIES = [
    {},
    {"minimum_matched_tokens": 0, "routing_floor_score": 0.0},
    {"minimum_prefix_tokens": 80, "minimum_matched_tokens": 16},
    {"affinity_routing": False, "minimum_prefix_tokens": 48, "routing_floor_score": 5.0},
]


@pytest.mark.parametrize(("seed", "policy"), list(enumerate(POLICIES)), ids=["default", "everything", "long", "strict"])
def test_equal_answers(pb, plane, original_server, seed, policy):
    dice = random.Random(seed)
    sets = [word for key, value in policy.items() for word in ("--set", f"hints.{key}={str(value).lower()}")]
    ours = Client(pb, plane(args=sets).grpc)
    both = Both(ours, Client(pb, original_server(policy=Policy(**policy)).address))
    known, reasons = prompts(dice), {}
    began = time.monotonic()
    for _ in range(500):
        a_change(dice, pb, both, known)
        for _ in range(2):
            reason = a_question(dice, pb, both, known)
            reasons[reason] = reasons.get(reason, 0) + 1
    for tenant in TENANTS:
        for model in MODELS:
            mine, yours = both.call("state", tenant_id=tenant, model_id=model)
            assert mine.summary.total_prefixes == yours.summary.total_prefixes
    assert time.monotonic() - began < 60, "answers are compared within the drift that is tolerated"
    # The test is worth something only if every way through the rules was taken.
    expected = {"PREFIX_MATCH", "TENANT_HOT", "NO_HINT", "UNKNOWN_TENANT", "UNKNOWN_MODEL", "UNKNOWN_HASH_SCHEME"}
    if policy.get("affinity_routing", True):
        expected |= {"AFFINITY_HINT"}
    assert expected <= reasons.keys(), reasons
