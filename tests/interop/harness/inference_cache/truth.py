"""What an engine really holds, as prefixes: its own word for residency, its own ring for what blocks are."""

import zmq

from ..hashing import contents
from ..replay import replay
from ..wait import eventually
from ..wire import NEWEST, bits
from .subscriber import chain_on, decode, key_of


class Prefixes:
    """Engine's hashes as (adapter, prefix on the wire) with tokens. It forgets nothing: what is held is said elsewhere."""

    def __init__(self):
        self.known = {}

    def learn(self, payload):
        for tag, fields in decode(payload)[1]:
            if tag != "BlockStored":
                continue
            parent, size = fields.get("parent_block_hash"), fields["block_size"]
            before = None if parent is None else self.known[bits(parent)]
            hashes = list(contents(fields["token_ids"], size))
            assert len(hashes) == len(fields["block_hashes"])
            for hash, content in zip(fields["block_hashes"], hashes):
                prefix, tokens = (content, size) if before is None else (chain_on(before[0], content), before[1] + size)
                before = self.known[bits(hash)] = (prefix, tokens, fields.get("lora_name") or "")

    def of(self, hashes):
        """{(adapter, prefix on the wire): tokens}"""
        found = (self.known[hash] for hash in hashes)
        return {(adapter, key_of(prefix)): tokens for prefix, tokens, adapter in found}


def load(sim, prompts, seed):
    """Prompts with common beginnings, more than a cache of 64 blocks has room for."""
    for at in range(prompts):
        sim.complete([seed + at % 3] * 48 + [seed * 31 + at] * 40, 8)


def truth(sim):
    """What a quiet simulator holds. Its ring must still have its whole life."""
    held, next_sequence = sim.state()

    def whole():
        # Its publisher may be a moment behind its cache.
        with zmq.Context() as context:
            _, batches = replay(context, sim.replay[0], 0, NEWEST.replay_has_topic)
        return (batches,) if len(batches) == next_sequence else None

    prefixes = Prefixes()
    (batches,) = eventually(whole, f"a ring of {next_sequence} batches")
    for _, payload in batches:
        prefixes.learn(payload)
    return prefixes.of(held)
