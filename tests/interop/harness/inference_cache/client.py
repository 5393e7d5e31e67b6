"""A gateway's and a sidecar's calls, in short words."""

import time

import grpc

from .index import fingerprints


class Client:
    """Calls of `inferencecache.v1alpha1` to any server, with names that need not be said each time."""

    def __init__(self, pb, address, **names):
        self.pb = pb
        self.channel = grpc.insecure_channel(address)
        self.stub = pb.InferenceCacheStub(self.channel)
        self.names = {"tenant_id": "t", "model_id": "m", **names}

    def update(self, replica, *entries, scheme="vllm", **more):
        """A CacheStateUpdate. Entries are keywords of PrefixEntry."""
        update = self.pb.CacheStateUpdate(replica_id=replica, hash_scheme=scheme, **{**self.names, **more})
        for entry in entries:
            update.prefixes.add(**entry)
        return update

    def report(self, *updates):
        """One stream of updates; whether they were accepted."""
        return self.stub.ReportCacheState(iter(updates), timeout=5).accepted

    def holds(self, replica, tokens, upto=None, block_size=16, adapter="", tier=0, **more):
        """Reports the blocks of a prompt as the original sidecar does: one entry for each."""
        hashes = fingerprints(tokens, block_size)[:upto]
        entries = [
            {"prefix_hash": hash, "token_count": block_size * depth, "adapter_id": adapter, "tier": tier}
            for depth, hash in enumerate(hashes, 1)
        ]
        assert self.report(self.update(replica, *entries, **more))

    def event(self, type, replica, **more):
        """One CacheEvent by the name of its type; whether it was accepted."""
        type = self.pb.CacheEvent.Type.Value(type)
        return self.stub.PublishEvent(self.pb.CacheEvent(type=type, replica_id=replica, **{**self.names, **more}), timeout=5).accepted

    def ask(self, scheme="vllm", **question):
        question = {**self.names, **question}
        return self.stub.LookupRoute(self.pb.LookupRouteRequest(hash_scheme=scheme, **question), timeout=5)

    def chain(self, tokens, block_size=16, **question):
        """Asks by the hashes of a prompt's blocks."""
        hashes = fingerprints(tokens, block_size)
        return self.ask(block_hashes=hashes, block_token_counts=[block_size] * len(hashes), **question)

    def exact(self, hash, tokens=0, **question):
        return self.ask(prefix_hash=hash, prefix_token_count=tokens, **question)

    def state(self, **names):
        return self.stub.GetCacheState(self.pb.GetCacheStateRequest(**{**self.names, **names}), timeout=5)

    def close(self):
        self.channel.close()


def matched(answer):
    """(replica, tokens) of a match; of anything else its reason code."""
    if answer.reason_code != "PREFIX_MATCH":
        return answer.reason_code
    return [(score.replica_id, score.matched_tokens) for score in answer.replica_scores]


def now_us():
    return int(time.time() * 1e6)
