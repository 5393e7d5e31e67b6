"""What the original server knows, and how it answers: who holds which prefix, by scans and dictionaries."""

import hashlib
import struct
from dataclasses import dataclass, field

from ..hashing import chain, contents

RESERVED = "inferencecache.io/probe"
HOT_SECONDS = 300.0
HOT_RATE = 0.1
MOST_TOKENS = 1 << 20
# Event types and the tier of an entry that names none, by their numbers on the wire.
ADDED, EVICTED, UPDATED, CLEARED = 1, 2, 3, 4
T1 = 1


def fingerprints(tokens, block_size=16):
    """The prefixes of a prompt's whole blocks, as they are on the wire: eight bytes, the highest first."""
    return [struct.pack(">Q", prefix) for prefix in chain(contents(tokens, block_size))]


@dataclass
class Policy:
    """How a tenant's lookups are decided."""

    ttl: float = 1800.0
    minimum_prefix_tokens: int = 0
    minimum_matched_tokens: int = 64
    routing_floor_score: float = 0.1
    affinity_routing: bool = True
    chain_matching: bool = True
    require_chain: bool = False
    tenant_hot: bool = True


@dataclass
class Held:
    tokens: int
    seen: float
    tier: int


@dataclass
class Score:
    replica: str
    score: float = 0.0
    matched_tokens: int = 0
    probability: float = 0.0
    tier: int = 0


@dataclass
class Answer:
    reason: str
    scores: list[Score] = field(default_factory=list)


class Index:
    """Soft state: nothing is kept longer than `ttl`, nothing is asked for again."""

    def __init__(self, clock, policy=None, block_size=16):
        self.clock = clock
        self.policy = policy or Policy()
        self.block_size = block_size
        self.entries = {}  # (tenant, model, scheme, adapter, hash) -> replica -> Held
        self.stats = {}  # (tenant, model, replica) -> (statistics, told at, alive at)

    # --- what is told ---------------------------------------------------------------------------------------

    def report(self, update):
        """A CacheStateUpdate: added to what is known."""
        if update.tenant_id == RESERVED:
            return
        at = update.timestamp_us / 1e6 if update.timestamp_us else self.clock()
        for entry in update.prefixes if update.hash_scheme else []:
            adapter = entry.adapter_id or update.adapter_id
            hashes, counts = entry.block_hashes, entry.block_token_counts
            if len(hashes) != len(counts):
                continue
            told = []
            for depth, hash in enumerate(hashes):
                told.append((hash, sum(counts[: depth + 1])))
            if entry.prefix_hash or not hashes:
                told.append((entry.prefix_hash, entry.token_count))
            for hash, tokens in told:
                key = (update.tenant_id, update.model_id, update.hash_scheme, adapter, hash)
                self.entries.setdefault(key, {})[update.replica_id] = Held(tokens, at, entry.tier or T1)
        if update.HasField("stats"):
            statistics = type(update.stats)()
            statistics.CopyFrom(update.stats)
            statistics.replica_id, statistics.client_version = update.replica_id, ""
            statistics.hit_rate, statistics.pressure = number(statistics.hit_rate), number(statistics.pressure)
            self.stats[update.tenant_id, update.model_id, update.replica_id] = (statistics, at, at)

    def event(self, event):
        """A CacheEvent. It has no scheme: an eviction counts in all."""
        if event.tenant_id == RESERVED:
            return
        whose = (event.tenant_id, event.model_id, event.replica_id)
        if event.type == EVICTED:
            named = lambda key: key[4] == event.prefix_hash and event.adapter_id in ("", key[3])
            self._remove(whose, named)
        elif event.type == CLEARED:
            self._remove(whose, lambda key: True)
            self.stats.pop(whose, None)
        elif event.type == UPDATED and whose in self.stats:
            statistics, told, _ = self.stats[whose]
            self.stats[whose] = (statistics, told, event.timestamp_us / 1e6 if event.timestamp_us else self.clock())

    def _remove(self, whose, named):
        tenant, model, replica = whose
        for key in [key for key in self.entries if key[:2] == (tenant, model) and named(key)]:
            self.entries[key].pop(replica, None)
            if not self.entries[key]:
                del self.entries[key]

    def sweep(self):
        """Forgets what is too old."""
        old = lambda at: self.clock() - at >= self.policy.ttl
        for key, holders in list(self.entries.items()):
            self.entries[key] = {replica: held for replica, held in holders.items() if not old(held.seen)}
            if not self.entries[key]:
                del self.entries[key]
        self.stats = {whose: kept for whose, kept in self.stats.items() if not old(kept[2])}

    def forget(self):
        """Everything at once, as if its time were over."""
        self.entries, self.stats = {}, {}

    # --- what is asked --------------------------------------------------------------------------------------

    def held(self, tenant, model, replica, scheme=None):
        """(adapter, hash) of everything that a replica is believed to hold, with its tokens and tier."""
        return {
            (key[3], key[4]): (holders[replica].tokens, holders[replica].tier)
            for key, holders in list(self.entries.items())
            if key[:2] == (tenant, model) and scheme in (None, key[2]) and replica in holders
        }

    def lookup(self, request):
        """The answer to a LookupRouteRequest."""
        policy = self.policy
        if request.tenant_id == RESERVED:
            return Answer("NO_HINT")
        wire_chain = len(request.block_hashes) > 0 and len(request.block_hashes) == len(request.block_token_counts)
        if policy.require_chain and not wire_chain:
            return Answer("POLICY_REQUIRES_CHAIN")
        asked = self._asked(request)
        if asked is None:
            return Answer("NO_HINT")
        hashes, counts, exact = asked
        tokens = sum(counts) if counts else exact[1]
        if not policy.affinity_routing and tokens < policy.minimum_prefix_tokens:
            return Answer("NO_HINT")
        if not (request.tenant_id and request.model_id and request.hash_scheme):
            return Answer("NO_HINT")
        answer = self._known(request, hashes, counts, exact)
        if answer.scores and tokens < policy.minimum_prefix_tokens:
            answer = Answer("NO_HINT")
        if answer.reason == "PREFIX_MATCH":
            answer.scores = [score for score in answer.scores if score.matched_tokens >= policy.minimum_matched_tokens]
            if not answer.scores or answer.scores[0].score < policy.routing_floor_score:
                answer = Answer("NO_HINT")
        if answer.reason == "NO_HINT" and policy.affinity_routing:
            answer = self._affinity(request, hashes, exact)
        return answer

    def _asked(self, request):
        """(chain, tokens of its blocks, (hash, tokens)) to look for; None for what cannot be used."""
        hashes, counts = list(request.block_hashes), list(request.block_token_counts)
        exact = (request.prefix_hash, request.prefix_token_count)
        if request.prefix_hash and not self.policy.chain_matching:
            return [], [], exact
        if hashes or counts or request.prefix_hash:
            if len(hashes) != len(counts):
                return None
            if hashes and not self.policy.chain_matching:
                return [], [], (hashes[-1], sum(counts))
            return hashes, counts, exact
        if not 0 < len(request.token_ids) <= MOST_TOKENS:
            return None
        hashes = fingerprints(request.token_ids, self.block_size)
        if not hashes:
            return None
        whole = (hashes[-1], len(hashes) * self.block_size)
        if not self.policy.chain_matching:
            return [], [], whole
        return hashes, [self.block_size] * len(hashes), whole

    def _known(self, request, hashes, counts, exact):
        """A match, somebody warm, or what part of the question nothing is known of."""
        runs = self._runs(request, hashes, counts) if hashes else self._exact(request, exact[0])
        if runs:
            return Answer("PREFIX_MATCH", self._scored(request, runs))
        hot = self._hot(request) if not hashes and self.policy.tenant_hot else []
        if hot:
            return Answer("TENANT_HOT", hot)
        if not self.entries:
            return Answer("NO_HINT")
        for depth, reason in enumerate(["UNKNOWN_TENANT", "UNKNOWN_MODEL", "UNKNOWN_HASH_SCHEME"], 1):
            scope = (request.tenant_id, request.model_id, request.hash_scheme)[:depth]
            if not any(key[:depth] == scope for key in self.entries):
                return Answer(reason)
        return Answer("NO_HINT")

    def _holders(self, request, hash):
        key = (request.tenant_id, request.model_id, request.hash_scheme, request.adapter_id, hash)
        fresh = lambda held: self._freshness(held.seen) > 0
        return {replica: held for replica, held in self.entries.get(key, {}).items() if fresh(held)}

    def _freshness(self, seen):
        return min(1.0, max(0.0, 1.0 - (self.clock() - seen) / self.policy.ttl))

    def _exact(self, request, hash):
        return {replica: [held.tokens, held.seen, held.tier, 1] for replica, held in self._holders(request, hash).items()}

    def _runs(self, request, hashes, counts):
        """The longest leading run of each replica: its tokens, its oldest word, its coldest tier, its blocks."""
        runs, going = {}, None
        for hash, count in zip(hashes, counts):
            holders = self._holders(request, hash)
            going = set(holders) if going is None else going & set(holders)
            if not going:
                break
            for replica in going:
                held, run = holders[replica], runs.setdefault(replica, [0, float("inf"), 0, 0])
                run[:] = [run[0] + count, min(run[1], held.seen), max(run[2], held.tier), run[3] + 1]
        return {replica: run for replica, run in runs.items() if run[0] > 0}

    def _scored(self, request, runs):
        scope = self._in_scope(request)
        scores = []
        for replica, (tokens, seen, tier, blocks) in runs.items():
            freshness = self._freshness(seen)
            as_deep = sum(1 for other in runs.values() if (other[3], other[0]) >= (blocks, tokens))
            distinction = 1.0 if len(scope) <= 1 else max(0.0, 1.0 - as_deep / len(scope))
            statistics, told, _ = self.stats.get((request.tenant_id, request.model_id, replica), (None, 0.0, 0.0))
            pressure = statistics.pressure if statistics and self._freshness(told) > 0 else 0.0
            score = tokens * freshness * room(pressure) * self._urgency(request, freshness) * distinction
            scores.append(Score(replica, score, tokens, freshness, tier))
        return best_first(scores)

    def _hot(self, request):
        scores = []
        for replica in self._in_scope(request):
            statistics, told, _ = self.stats.get((request.tenant_id, request.model_id, replica), (None, 0.0, 0.0))
            age = max(0.0, self.clock() - told)
            if statistics is None or age >= HOT_SECONDS or statistics.hit_rate < HOT_RATE:
                continue
            recent = 1.0 - age / HOT_SECONDS
            score = statistics.hit_rate * recent * room(statistics.pressure) * self._urgency(request, recent)
            scores.append(Score(replica, score, 0, statistics.hit_rate))
        return best_first(scores)

    def _urgency(self, request, freshness):
        return 1.0 + freshness if 0 < request.slo.ttft_ms < 200 else 1.0

    def _in_scope(self, request):
        """Replicas with an entry of any adapter, sorted."""
        scope = (request.tenant_id, request.model_id, request.hash_scheme)
        return sorted({replica for key, holders in self.entries.items() if key[:3] == scope for replica in holders})

    def _affinity(self, request, hashes, exact):
        """Always the same replica for a prompt, as long as the replicas are the same."""
        seed = b"".join(struct.pack(">I", len(hash)) + hash for hash in hashes) or exact[0]
        replicas = self._in_scope(request)
        if not seed or not replicas:
            return Answer("NO_HINT")
        at = struct.unpack(">Q", hashlib.sha256(seed).digest()[:8])[0] % len(replicas)
        return Answer("AFFINITY_HINT", [Score(replicas[at])])


def number(value):
    """What is no number counts as nothing."""
    return value if abs(value) < float("inf") else 0.0


def room(pressure):
    return max(0.0, 1.0 - pressure)


def best_first(scores):
    return sorted(scores, key=lambda score: (-score.score, score.replica))
