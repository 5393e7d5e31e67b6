"""A router's replica of one worker, which follows the rules that Dynamo's consumers follow, and nothing else."""

import json


class Replica:
    """Hears numbered events, asks for recovery where some are missing, and holds what it was told, by tier."""

    def __init__(self, ask, worker_id, rank=0):
        self._ask = ask
        self._worker = (worker_id, rank)
        self.tiers = {}
        self.cursor = None
        self.answers = []

    def hear(self, event_id, events):
        """A live event, as the publisher sent it: applied if it is the next, else asked for."""
        if self.cursor is not None and event_id <= self.cursor:
            return
        if self.cursor is None or event_id > self.cursor + 1:
            self.recover()
            if self.cursor is None or event_id != self.cursor + 1:
                return
        for event in events:
            self._apply(event)
        self.cursor = event_id

    def recover(self):
        """Asks for what follows the cursor."""
        start = None if self.cursor is None else self.cursor + 1
        ((kind, body),) = json.loads(self._ask(start)).items()
        self.answers.append(kind)
        if kind == "TreeDump":
            assert body["reset_scope"] == "all"
            self.tiers = {}
        elif kind in ("TooNew", "Error"):
            return
        else:
            assert kind == "Events", kind
            ids = [event["event"]["event_id"] for event in body["events"]]
            assert ids == sorted(ids) and start <= ids[0] and ids[-1] == body["last_event_id"]
        for event in body["events"]:
            self._apply(event)
        self.cursor = body["last_event_id"]

    def _apply(self, event):
        assert (event["worker_id"], event["event"]["dp_rank"]) == self._worker
        data = event["event"]["data"]
        tier = self.tiers.setdefault(event["storage_tier"], {})
        if data == "cleared":
            self.tiers = {}
        elif "stored" in data:
            parent = data["stored"]["parent_hash"]
            assert parent is None or event["storage_tier"] != "device" or parent in tier, "a parent that is not there"
            tier.update((block["block_hash"], block["tokens_hash"]) for block in data["stored"]["blocks"])
        else:
            for hash in data["removed"]["block_hashes"]:
                del tier[hash]

    def held(self):
        """Content by (tier, hash)."""
        return {(tier, hash): content for tier, blocks in self.tiers.items() for hash, content in blocks.items()}


def told_by(snapshot):
    """The same from a snapshot's own dump."""
    replica = Replica(lambda start: snapshot.to_json(), *_worker_of(snapshot))
    replica.recover()
    return replica.held()


def _worker_of(snapshot):
    events = json.loads(snapshot.to_json())["TreeDump"]["events"]
    return (events[0]["worker_id"], events[0]["event"]["dp_rank"]) if events else (0, 0)
