"""Prompts as text: tokenized by the plane, looked up in the copy."""

import asyncio
import json

import pytest
from planes import BLOCK, MODEL, Fleet

import kvplane

TEXT = "the user is waiting for an answer, and for a long one at that " * 4
CHATML = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"


def byte_level():
    """A vocabulary whose ids are bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {chr(byte): byte for byte in printable}, 0
    for byte in range(256):
        if byte not in printable:
            names[chr(256 + extra)] = byte
            extra += 1
    return names


class TextFleet(Fleet):
    """A fleet whose model has a tokenizer."""

    def __init__(self, binary, config):
        self.config = config
        super().__init__(binary, 1)

    def flags(self):
        yield from ("--config", str(self.config))
        yield from super().flags()


@pytest.fixture(scope="module")
def served(binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bytes")
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "vocab": byte_level(), "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": pre, "decoder": pre, "model": bpe}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "chat_template.jinja").write_text(CHATML)
    config = directory / "kvplane.toml"
    config.write_text(f'[[model]]\nname = "{MODEL}"\ntokenizer = "{directory}"\nadapters = ["m-lora"]\n')
    fleet = TextFleet(binary, config)
    try:
        fleet.sims[0].complete(list(TEXT.encode()))
        fleet.settle()
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def client(served):
    with kvplane.Client(served.address) as client:
        assert client.wait_ready(15)
        yield client


def test_text_is_answered_as_its_ids_are(client):
    answer = client.query(MODEL, prompt=TEXT)
    assert answer.matches[0].tokens >= len(TEXT) - BLOCK
    by_ids = client.query(MODEL, list(TEXT.encode()))
    assert [(one.engine, one.tokens) for one in answer.matches] == [(one.engine, one.tokens) for one in by_ids.matches]
    # A name of an adapter leads to other blocks.
    assert not client.query("m-lora", prompt=TEXT).matches
    chat = [{"role": "user", "content": TEXT}]
    assert not client.query(MODEL, messages=chat).matches
    with client.pick(MODEL, prompt=TEXT, dry_run=True) as booking:
        assert booking.cached_tokens > 0 and booking.picked["without_tokens"] is None


def test_ids_are_those_of_the_template(client):
    told = client.tokenize(MODEL, messages=[{"role": "user", "content": "Grüße"}])
    assert (told["token_ids"], told["model"], told["lora_name"]) == (list("user: Grüße\n".encode()), MODEL, None)
    assert told["parity"] == "assumed"
    assert client.tokenize("m-lora", prompt="x")["lora_name"] == "m-lora"


def test_what_is_wrong_is_named(client):
    for call in (
        lambda: client.query(MODEL, [1], prompt="x"),
        lambda: client.query(MODEL, [1], tools=[]),
        lambda: client.query("nobody", prompt="x"),
        lambda: client.tokenize(MODEL),
        lambda: client.tokenize(MODEL, prompt="x", nonsense=1),
    ):
        with pytest.raises(kvplane.Error) as error:
            call()
        assert error.value.code == "invalid_argument"


def test_asyncio_does_not_wait_in_its_loop(served):
    async def run():
        async with kvplane.AsyncClient(served.address) as client:
            assert await client.wait_ready(15)
            answer = await client.query(MODEL, prompt=TEXT)
            return answer.matches[0].tokens, await client.tokenize(MODEL, prompt="ab")

    tokens, told = asyncio.run(run())
    assert tokens > 0 and told["token_ids"] == [97, 98]
