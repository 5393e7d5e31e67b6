"""What real engines sent, frame by frame (crates/wire/tests/captures)."""

import json
from pathlib import Path

import msgspec

from .wire import NEWEST

FOLDER = Path(__file__).resolve().parents[3] / "crates/wire/tests/captures"


class Capture:
    """A recorded session."""

    def __init__(self, name):
        self.lines = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
        self.live = [line for line in self.lines if line["kind"] == "live"]
        assert [line["seq"] for line in self.live] == list(range(len(self.live)))
        self.payloads = [bytes.fromhex(line["payload_hex"]) for line in self.live]
        self.topic = self.live[0]["topic"]

    def truths(self):
        """(sequences heard before it, the request, what the engine took from its cache), in order."""
        for line in self.lines:
            if line["kind"] == "truth" and line.get("cached_tokens") is not None:
                earlier = sum(1 for live in self.live if live["step"] < line["step"])
                yield earlier, line, line["cached_tokens"]


def events(payload, typed=True):
    """The events of a payload: vLLM's with the structs of its version, SGLang's as plain objects of the same names."""
    if typed:
        return NEWEST.decode(payload).events
    return [_plain(event) for event in msgspec.msgpack.decode(payload)[1]]


def _plain(event):
    kind = type(event["type"], (), {key: value for key, value in event.items() if key != "type"})
    return kind()
