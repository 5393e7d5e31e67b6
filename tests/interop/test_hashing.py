"""The formula of docs/internals/hashing.md, computed from outside: the vectors, and prompts that a plane is asked for by hash."""

import json
from pathlib import Path

import pytest

from harness.hashing import chain, contents
from harness.plane import http

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "crates/core/tests/vectors.json").read_text())
DYNAMO = json.loads((ROOT / "tests/dynamo-vectors/vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_vectors(vector):
    vector = dict(vector)
    vector.pop("name")
    expected = [[int(hash) for hash in vector.pop(name)] for name in ("contents", "chain")]
    computed = list(contents(**vector))
    assert [computed, list(chain(computed))] == expected


@pytest.mark.parametrize("vector", DYNAMO, ids=lambda vector: vector["name"])
def test_what_dynamo_marks_hashes_as_in_dynamo(vector):
    """Vectors of Dynamo's own crate: tests/dynamo-vectors."""
    tokens = [token for store in vector["stores"] for token in store["token_ids"]]
    keys = [block for store in vector["stores"] for block in store.get("extra_keys") or [None] * len(store["block_hashes"])]
    lora_name = vector["stores"][0].get("lora_name")
    computed = list(contents(tokens, vector["block_size"], lora_name=lora_name, extra_keys=keys))
    assert computed == [int(hash) for hash in vector["tokens_hashes"]]
    assert list(chain(computed)) == [int(hash) for hash in vector["sequence_hashes"]]
    asked = list(contents(tokens, vector["block_size"], **vector["asked"]))
    assert asked == [int(hash) for hash in vector["asked_hashes"]]


def test_prompts_are_found_by_hash_as_by_what_they_are(sim, plane):
    one = sim("--loras", "french")
    p = plane(one, model="m")
    prompt = list(range(1000, 1100))
    image = {"id": "image-1", "offset": 5, "length": 30}
    # What the engine is sent, and how the same is asked for: to another length each.
    identities = [
        ({}, {}),
        ({"cache_salt": "tenant"}, {"cache_salt": "tenant"}),
        ({"lora": "french"}, {"lora_name": "french"}),
        ({"extra": {"images": [image]}}, {"multimodal": [image]}),
        ({"extra": {"images": [image]}, "cache_salt": "tenant"}, {"multimodal": [image], "cache_salt": "tenant"}),
    ]
    lengths = [(at + 2) * 16 for at in range(len(identities))]
    for (request, _), length in zip(identities, lengths):
        one.complete(prompt[:length], max_tokens=1, **request)
    p.wait_at(one.state()[1] - 1)
    for (_, names), length in zip(identities, lengths):
        hashes = list(contents(prompt, 16, **names))
        for question in [
            {"token_ids": prompt, **names},
            {"block_hashes": hashes, "block_size": 16},
            {"block_hashes": [str(hash) for hash in chain(hashes)], "block_size": 16, "chained": True},
        ]:
            status, answer = http("POST", f"{p.http}/v1/query", {"model": "m", **question})
            assert (status, answer["matches"][0]["tokens"]) == (200, length), (names, list(question))
