"""Plain models of what a consumer should end up with."""

from collections import Counter

from .wire import bits

TIERS = {None: "device", "GPU": "device", "CPU": "host", "cpu": "host", "CPU_PINNED": "host", "STORAGE": "disk", "FS": "disk", "OBJ": "remote"}


class Copies:
    """Copies by (tier, group, hash), counted from an engine's events."""

    def __init__(self):
        self.count = Counter()

    def apply(self, events):
        for event in events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.count = Counter({key: n for key, n in self.count.items() if key[0] != "device"})
                continue
            tier, group = TIERS[getattr(event, "medium", None)], getattr(event, "group_idx", None)
            for value in event.block_hashes:
                key = (tier, group, bits(value))
                if kind == "BlockStored":
                    self.count[key] += 1
                elif self.count[key] > 1:
                    self.count[key] -= 1
                else:
                    self.count.pop(key, None)

    def as_dict(self):
        return dict(self.count)

    def hashes(self):
        return {hash for _, _, hash in self.count}


class Presence:
    """A consumer of /kv_recover: sets by tier, nothing counted. Refuses what Dynamo's index would refuse."""

    def __init__(self):
        self.tiers = {}
        self.cursor = None
        self.dumps = 0

    def apply(self, answer):
        """Applies an `Events` or a `TreeDump` as Dynamo's router does."""
        (variant, body), = answer.items()
        if variant == "TooNew":
            assert body["requested_start"] == body["newest_available"] + 1, body
            return
        if variant == "TreeDump":
            assert body["reset_scope"] == "all"
            self.tiers = {}
            self.dumps += 1
        else:
            assert variant == "Events", answer
        for event in body["events"]:
            assert event["residency_domain"] == "worker"
            if variant == "Events":
                assert event["event"]["event_id"] == self.cursor + 1, (event, self.cursor)
                self.cursor += 1
            self.apply_one(event)
        self.cursor = body["last_event_id"]

    def apply_one(self, event):
        data = event["event"]["data"]
        tier = self.tiers.setdefault(event["storage_tier"], {})
        if data == "cleared":
            self.tiers = {}
        elif "stored" in data:
            parent = data["stored"]["parent_hash"]
            if parent is not None and event["storage_tier"] == "device":
                # Dynamo's index refuses a store whose parent it does not have.
                assert parent in tier, f"parent {parent} is not there"
            for block in data["stored"]["blocks"]:
                tier[block["block_hash"]] = block["tokens_hash"]
        else:
            for hash in data["removed"]["block_hashes"]:
                assert tier.pop(hash, None) is not None, f"{hash} was removed and not there"

    def device(self):
        return set(self.tiers.get("device", {}))

    def catch_up(self, plane, **question):
        """Asks for what follows the cursor, and applies it."""
        if self.cursor is not None:
            question["start"] = self.cursor + 1
        status, answer = plane.recover(**question)
        assert status == 200, answer
        self.apply(answer)
        return answer
