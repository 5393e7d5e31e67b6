"""A subscriber of kvplane.v1 that keeps an exact copy: it sets what it is told, and never counts."""

import functools
import struct

import xxhash

MASK = 2**64 - 1
TIERS = {1: "device", 2: "host", 3: "disk", 4: "remote"}


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58_476D_1CE4_E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D0_49BB_1331_11EB) & MASK
    return x ^ x >> 31


@functools.cache
def place_seed(medium, locality, ownership, group):
    parts = b"".join(
        b"\0" if text is None else b"\1" + struct.pack("<I", len(text.encode())) + text.encode()
        for text in (medium, locality, ownership)
    )
    return xxhash.xxh3_64_intdigest(parts + (b"\0" if group is None else b"\1" + struct.pack("<I", group)))


def digest(held):
    """The digest that kvplane publishes, from (place, hash) -> copies: two sums over all that is held."""
    low_sum = high_sum = 0
    for (place, hash), copies in held.items():
        low = mix(mix(hash ^ place_seed(*place)) + copies & MASK)
        low_sum += low
        high_sum += mix(low ^ 0x9E37_79B9_7F4A_7C15)
    return low_sum & MASK, high_sum & MASK


class Replica:
    """One stream's state, built from messages alone."""

    def __init__(self):
        self.held = {}  # (place, hash) -> copies
        self.tiers = {}  # place -> tier
        self.blocks = {}  # hash -> what a dense store said of it
        self.windows = {}  # group -> sliding window, None for full attention
        self.block_size = None
        self.epoch = self.sequence = self.engine_sequence = None
        self.trust = self.continuity = self.known_from = None
        self.resets = []
        self.complete = False

    def apply(self, message, pb):
        item = message.WhichOneof("item")
        if item == "reset":
            self.held.clear()
            self.blocks.clear()
            self.complete = False
            self.resets.append(pb.ResetReason.Name(message.reset.reason).removeprefix("RESET_REASON_"))
        elif item == "snapshot":
            chunk = message.snapshot
            for stored in chunk.stored:
                self._stored(stored)
            if chunk.last:
                self.complete = True
                self.engine_sequence = chunk.engine_sequence if chunk.HasField("engine_sequence") else None
                self.known_from = chunk.known_from if chunk.HasField("known_from") else None
                self._standing(chunk, pb)
        else:
            assert self.sequence is None or message.sequence == self.sequence + 1, "a gap in our own numbers"
            batch = message.batch
            for event in batch.events:
                self._event(event)
            if batch.HasField("engine_sequence"):
                self.engine_sequence = batch.engine_sequence
            self._standing(batch, pb)
        self.epoch, self.sequence = message.epoch, message.sequence
        if self.complete:
            told = getattr(message, item).digest
            assert (told.low, told.high) == digest(self.held), "not the state that kvplane has"

    @property
    def copies(self):
        """Copies by (tier, group, hash)."""
        return {(self.tiers[place], place[3], hash): copies for (place, hash), copies in self.held.items()}

    def _standing(self, item, pb):
        if item.HasField("trust"):
            self.trust = pb.TrustLevel.Name(item.trust.level).removeprefix("TRUST_LEVEL_").lower()
        if item.continuity:
            self.continuity = pb.Continuity.Name(item.continuity).removeprefix("CONTINUITY_").lower()

    def _event(self, event):
        kind = event.WhichOneof("kind")
        if kind == "stored":
            self._stored(event.stored)
        elif kind == "removed":
            for block in event.removed.blocks:
                self._set(event.removed.place, block.hash, block.copies)
        elif kind == "cleared":
            places = [self._place(place) for place in event.cleared.places]
            # An empty list of places is a new life: everything went.
            self.held = {key: n for key, n in self.held.items() if places and key[0] not in places}
        else:
            self.held.clear()

    def _stored(self, stored):
        place = stored.place
        if stored.layout == 0 and stored.block_size:
            self.block_size = stored.block_size
        if place.HasField("group"):
            self.windows[place.group] = place.sliding_window if place.HasField("sliding_window") else None
        for block in stored.blocks:
            if block.token_ids:
                self.blocks[block.hash] = block
            if block.copies:
                self._set(place, block.hash, block.copies)

    def _place(self, place):
        words = ("medium", "locality", "ownership", "group")
        key = tuple(getattr(place, word) if place.HasField(word) else None for word in words)
        self.tiers[key] = TIERS.get(place.tier, "unknown")
        return key

    def _set(self, place, hash, copies):
        key = (self._place(place), hash)
        if copies:
            self.held[key] = copies
        else:
            self.held.pop(key, None)

    def predict(self, prompt, salt):
        """How many of the prompt's tokens the engine has: in full groups every block, in sliding ones the window's."""
        if not self.block_size:
            return 0
        children = {}
        for hash, block in self.blocks.items():
            if block.root or block.HasField("parent"):
                keys = tuple(key.text for key in block.extra_keys)
                children[None if block.root else block.parent, tuple(block.token_ids), keys] = hash
        chain, parent = [], None
        size = self.block_size
        for at in range(0, (len(prompt) - 1) // size * size, size):
            keys = (salt,) if salt and parent is None else ()
            parent = children.get((parent, tuple(prompt[at : at + size]), keys))
            if parent is None:
                break
            chain.append(parent)
        copies = self.copies
        for n in range(len(chain), 0, -1):
            if all(self._holds(copies, group, window, chain[:n]) for group, window in self.windows.items()):
                return n * size
        return 0

    def _holds(self, copies, group, window, prefix):
        needed = len(prefix) if window is None else min(-(-(window - 1) // self.block_size), len(prefix))
        return all(("device", group, hash) in copies for hash in prefix[len(prefix) - needed :])
