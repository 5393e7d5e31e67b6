"""Block hashes as docs/internals/hashing.md says them, from nothing but that page. A gateway may copy this file."""

import re
import struct

import xxhash

SEED = 1337
DYNAMO_SALT = "dynamo-cache-salt:"
MASK = (1 << 64) - 1


def namespace(lora_name=None, lora_id=None, cache_salt=None):
    """The seed of a prompt's blocks: adapter and salt, folded."""
    adapter = lora_name or (f"lora_id:{lora_id}" if lora_id is not None else "")
    part = lambda text, seed: xxhash.xxh3_64_intdigest(text.encode(), seed=seed) if text else 0
    return (SEED + part(adapter, 0) + part(cache_salt or "", 1)) & MASK


def key_bytes(key):
    """One further key: text, a whole number, [id, offset] or {"bytes": hexadecimal}."""
    field = lambda tag, data: bytes([tag]) + struct.pack("<I", len(data)) + data
    match key:
        case str():
            return field(3, key.encode())
        case int():
            return b"\x04" + struct.pack("<q", key)
        case [id, offset]:
            return field(1, id.encode()) + struct.pack("<q", offset)
        case {"bytes": digits}:
            return field(2, bytes.fromhex(digits))
    raise ValueError(key)


def dynamo_salt(key):
    """The salt in a text that Dynamo marked, or None."""
    return key.removeprefix(DYNAMO_SALT) or None if isinstance(key, str) and key.startswith(DYNAMO_SALT) else None


def dynamo_image(key):
    """The number of an image that Dynamo marked, or None."""
    id = key[0] if isinstance(key, list) else key
    marked = isinstance(id, str) and re.fullmatch("([0-9a-fA-F]{16})0{48}", id)
    return int(marked[1], 16) if marked else None


def further_keys(keys, lora_name, cache_salt=None):
    """A block's keys without the names that they repeat: each is left out once."""
    for key in keys or []:
        if isinstance(key, str) and key == lora_name:
            lora_name = None
        elif isinstance(key, str) and cache_salt is not None and cache_salt in (key, dynamo_salt(key)):
            cache_salt = None
        else:
            yield key


def salt_among(keys, lora_name):
    """The salt in the keys of a prompt's first block: the one that Dynamo marked, or the first text that is no name and no
    image."""
    texts = [key for key in further_keys(keys, lora_name) if isinstance(key, str) and dynamo_image(key) is None]
    return next(filter(None, map(dynamo_salt, texts)), None) or next(iter(texts), None)


def items_of(block, items):
    """The keys of a block (a range of positions): every item that covers a part of it."""
    return [
        [item["id"], item["offset"] - block.start]
        for item in items
        if item["offset"] < block.stop and block.start < item["offset"] + item["length"]
    ]


def contents(token_ids, block_size, *, lora_name=None, lora_id=None, cache_salt=None, extra_keys=None, multimodal=None, bigrams=False):
    """The content hashes of a prompt's whole blocks."""
    if extra_keys and not cache_salt:
        # vLLM's lists have the salt of a prompt in its first block, behind the adapter's name.
        cache_salt = salt_among(extra_keys[0], lora_name)
    seed = namespace(lora_name, lora_id, cache_salt)
    positions = [(token,) for token in token_ids]
    if bigrams:
        positions = list(zip(token_ids, token_ids[1:]))
    for at in range(len(positions) // block_size):
        block = range(at * block_size, (at + 1) * block_size)
        keys = extra_keys[at] if extra_keys else items_of(block, multimodal or [])
        data = b"".join(struct.pack("<I", token) for position in block for token in positions[position])
        further = list(further_keys(keys, lora_name, cache_salt))
        data += b"".join(key_bytes(key) for key in further if dynamo_image(key) is None)
        images = [image for image in map(dynamo_image, further) if image is not None]
        data += b"".join(struct.pack("<Q", image) for image in sorted(images))
        yield xxhash.xxh3_64_intdigest(data, seed=seed)


def chain(hashes):
    """The hashes of the prefixes that end with each block."""
    prefix = None
    for content in hashes:
        prefix = content if prefix is None else xxhash.xxh3_64_intdigest(struct.pack("<QQ", prefix, content), seed=SEED)
        yield prefix
