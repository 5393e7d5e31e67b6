"""Frames in and out, beside msgspec's."""

import msgspec
import pytest
from harness.captures import Capture

import kvplane


@pytest.mark.parametrize("name", ["vllm-0.32.0", "vllm-0.32.0-hybrid-oracle", "sglang-0.5.23"])
def test_captures_are_decoded_as_msgspec_does(name):
    for payload in Capture(name).payloads:
        timestamp, theirs, rank = msgspec.msgpack.decode(payload)
        ours = kvplane.decode(payload)
        assert (ours["timestamp"], ours["rank"], ours["unknown_fields"]) == (timestamp, rank, 0)
        for own, other in zip(ours["events"], theirs, strict=True):
            told = {field: value for field, value in own.items() if value is not None}
            expected = {field: value for field, value in other.items() if value is not None}
            # A list of lists of keys: pairs are tuples, and blocks without keys have none.
            assert _plain(told.pop("extra_keys", None)) == _plain(expected.pop("extra_keys", None))
            assert told == expected


def _plain(keys):
    if keys is None or not any(keys):
        return None
    return [[list(key) if isinstance(key, tuple) else key for key in block] if block else None for block in keys]


STORED = {"type": "BlockStored", "block_hashes": [5], "parent_block_hash": 4, "token_ids": [1, 2], "block_size": 2, "medium": "GPU", "lora_name": "a"}


def test_every_release_writes_its_own_shape():
    newest, oldest = (kvplane.encode([STORED], profile=profile) for profile in ("vllm-0.32", "vllm-0.9.0"))
    assert isinstance(msgspec.msgpack.decode(newest)[1][0], dict)
    assert msgspec.msgpack.decode(oldest) == [0.0, [["BlockStored", [5], 4, [1, 2], 2, None]]]
    assert kvplane.decode(newest)["events"][0]["lora_name"] == "a"
    assert kvplane.decode(oldest)["events"][0]["lora_name"] is None, "that release does not know it"
    salted = kvplane.encode([{**STORED, "cache_salt": "s"}], profile="sglang-0.5.22")
    assert kvplane.decode(salted)["events"][0]["cache_salt"] == "s"


def test_pairs_of_tokens():
    pairs = {**STORED, "token_ids": [(1, 2), (2, 3)]}
    assert kvplane.decode(kvplane.encode([pairs], profile="sglang-0.5.22"))["events"][0]["token_ids"] == [(1, 2), (2, 3)]


def test_what_is_unknown_or_malformed_is_told_as_such():
    payload = msgspec.msgpack.encode([1.5, [{"type": "BlockRead", "x": 1}, {"type": "BlockRemoved"}, ["BlockStored", [None], None, [], 0]], 0])
    assert kvplane.decode(payload)["events"] == [
        {"type": "BlockRead", "unknown": True},
        {"type": None, "rejected": "removal", "reason": "missing_field"},
        {"type": None, "rejected": "store", "reason": "bad_hash"},
    ]


@pytest.mark.parametrize(
    ("events", "options", "argument", "error"),
    [
        ("text", {}, "events", TypeError),
        ([1], {}, r"events\[0\]", TypeError),
        ([{}], {}, r"events\[0\].type", ValueError),
        ([{"type": "Block"}], {}, r"events\[0\].type", ValueError),
        ([STORED, {**STORED, "token_ids": [1, -2]}], {}, r"events\[1\].token_ids\[1\]", ValueError),
        ([{**STORED, "block_size": 3}], {}, r"events\[0\].token_ids", ValueError),
        ([{**STORED, "blocksize": 3}], {}, r"events\[0\].blocksize", TypeError),
        ([{"type": "BlockRemoved"}], {}, r"events\[0\].block_hashes", ValueError),
        ([], {"profile": "vllm-99"}, "profile", ValueError),
        ([], {"rank": -1}, "rank", ValueError),
    ],
)
def test_events_that_cannot_be_are_named(events, options, argument, error):
    with pytest.raises(error, match=f"^{argument}: ") as raised:
        kvplane.encode(events, **options)
    assert raised.value.code == "invalid_argument"
