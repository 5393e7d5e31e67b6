"""Engines' own publishers: the file of a release that declares its events and sends them, with nothing around it."""

import atexit
import hashlib
import importlib.util
import inspect
import sys
import time
import types
from pathlib import Path

from .plane import free_ports

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / ".venv" / "engines"


def load(release):
    """The module of a release. What it imports from its own package, and does not need to publish, is made up."""
    stubs = {
        "pydantic": {"BaseModel": type("BaseModel", (), {})},
        "sglang.srt.runtime_context": {"get_parallel": lambda: None},
        "sglang.srt.utils.network": {"NetworkAddress": object},
    }
    path = FILES / release / "kv_events.py"
    assert path.is_file(), f"{path} is not there: run scripts/python-env.sh"
    spec = importlib.util.spec_from_file_location("kv_events_" + release.replace("-", "_").replace(".", "_"), path)
    module = importlib.util.module_from_spec(spec)
    added = []
    for name, members in stubs.items():
        parts = name.split(".")
        for at in range(1, len(parts) + 1):
            parent = ".".join(parts[:at])
            if parent not in sys.modules:
                sys.modules[parent] = types.ModuleType(parent)
                added.append(parent)
        if name in added:
            vars(sys.modules[name]).update(members)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        for name in added:
            del sys.modules[name]
    return module


class Release:
    """A publisher of a release, on free ports."""

    has_replay = True

    def __init__(self, release, topic="kv"):
        self.software = release.partition("-")[0]
        self.module = load(release)
        self.topic = topic.encode()
        ports = free_ports(2)
        self.events, self.replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        # With a wildcard they bind.
        endpoint, replay = (f"tcp://*:{port}" for port in ports)
        make = self.module.ZmqEventPublisher
        rank = {"attn_dp_rank": 0} if "attn_dp_rank" in inspect.signature(make).parameters else {}
        self.publisher = make(**rank, endpoint=endpoint, replay_endpoint=replay, topic=topic)
        self.published = 0

    def has(self, field, kind="BlockStored"):
        return field in getattr(self.module, kind).__struct_fields__

    def stored(self, hashes, parent, tokens, block_size, medium="GPU", **more):
        values = {"lora_id": None, "medium": medium, **more}
        values = {name: value for name, value in values.items() if self.has(name)}
        return self.module.BlockStored(
            block_hashes=hashes, parent_block_hash=parent, token_ids=tokens, block_size=block_size, **values
        )

    def removed(self, hashes, medium="GPU"):
        values = {"medium": medium} if self.has("medium", "BlockRemoved") else {}
        return self.module.BlockRemoved(block_hashes=hashes, **values)

    def cleared(self):
        return self.module.AllBlocksCleared()

    def publish(self, *events):
        """Sends a batch; its sequence."""
        self.publisher.publish(self.module.KVEventBatch(ts=time.time(), events=list(events)))
        self.published += 1
        return self.published - 1

    def kill(self):
        self.publisher.shutdown()
        atexit.unregister(self.publisher.shutdown)


def page_hashes(tokens, page, signed=True, pairs=False, salt=None):
    """SGLang's hashes of a prompt's pages, since 0.5.6."""
    digest = hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).digest() if salt else b""
    units = list(zip(tokens, tokens[1:])) if pairs else [(token,) for token in tokens]
    hashes = []
    for first in range(0, len(units) - page + 1, page):
        ids = b"".join(id.to_bytes(4, "little") for unit in units[first : first + page] for id in unit)
        digest = hashlib.sha256(digest + ids).digest()
        hashes.append(int.from_bytes(digest[:8], "big", signed=signed))
    return hashes
