"""A subscriber of kvplane.v1 that keeps an exact copy: it sets what it is told, and never counts."""


class Replica:
    """One stream's state, built from messages alone."""

    def __init__(self):
        self.copies = {}  # (tier, group, hash) -> copies
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
            self.copies.clear()
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
            self.copies = {k: n for k, n in self.copies.items() if places and k[:2] not in places}
        else:
            self.copies.clear()

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
        tier = {1: "device", 2: "host", 3: "disk", 4: "remote"}.get(place.tier, "unknown")
        return tier, place.group if place.HasField("group") else None

    def _set(self, place, hash, copies):
        key = (*self._place(place), hash)
        if copies:
            self.copies[key] = copies
        else:
            self.copies.pop(key, None)

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
        for n in range(len(chain), 0, -1):
            if all(self._holds(group, window, chain[:n]) for group, window in self.windows.items()):
                return n * size
        return 0

    def _holds(self, group, window, prefix):
        needed = len(prefix) if window is None else min(-(-(window - 1) // self.block_size), len(prefix))
        return all(("device", group, hash) in self.copies for hash in prefix[len(prefix) - needed :])
