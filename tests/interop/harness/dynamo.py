"""Dynamo's own programs (1.6.1 from PyPI), run beside kvplane.

They live in `.venv-dynamo`, which scripts/interop-env.sh dynamo makes; tests that need them are skipped by name without it.
Dynamo's servers bind every interface and take no address: their ports are free ones, and everything here talks to
loopback alone.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from .plane import ROOT, free_ports, http
from .wait import eventually

PYTHON = Path(os.environ.get("DYNAMO_PYTHON") or ROOT / ".venv-dynamo" / "bin" / "python")

needs_dynamo = pytest.mark.skipif(
    not PYTHON.is_file(), reason="Dynamo 1.6.1 is not installed: scripts/interop-env.sh dynamo makes .venv-dynamo"
)


class DynamoProcess:
    """A Python program of Dynamo's environment, with its log in a file."""

    def __init__(self, *words, env=None):
        self._directory = tempfile.TemporaryDirectory(prefix="kvplane-dynamo-")
        self.log_path = Path(self._directory.name) / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "KVPLANE__"))}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(PYTHON), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, "PYTHONUNBUFFERED": "1", **(env or {})},
            )

    def log(self):
        return self.log_path.read_text(errors="replace")

    def eventually(self, look, what, deadline=15.0):
        """Waits for a condition while the process runs; its log is part of the failure."""

        def checked():
            assert self.process.poll() is None, f"exited with {self.process.returncode}:\n{self.log()}"
            return look()

        return eventually(checked, lambda: f"{what() if callable(what) else what}\n{self.log()[-3000:]}", deadline)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._directory.cleanup()


class DynamoIndexer(DynamoProcess):
    """`python -m dynamo.indexer`: Dynamo's standalone indexer on a free port."""

    def __init__(self, *words, block_size=4, model="m", threads=2, peers=()):
        self.model, self.block_size = model, block_size
        (port,) = free_ports(1)
        self.http = f"http://127.0.0.1:{port}"
        known = ["--port", port, "--block-size", block_size, "--model-name", model, "--threads", threads]
        if peers:
            known += ["--peers", ",".join(peers)]
        super().__init__("-m", "dynamo.indexer", *known, *words)
        self.eventually(self._healthy, "healthy")

    def _healthy(self):
        try:
            return http("GET", self.http + "/health")[0] == 200
        except OSError:
            return False

    def register(self, instance, events, replay=None, rank=0, **more):
        """Makes it listen to a publisher."""
        body = {
            "instance_id": instance, "endpoint": events, "replay_endpoint": replay, "dp_rank": rank,
            "model_name": self.model, "block_size": self.block_size, **more,
        }
        status, answer = http("POST", self.http + "/register", body)
        assert status == 201, (status, answer)

    def unregister(self, instance, **more):
        return http("POST", self.http + "/unregister", {"instance_id": instance, "model_name": self.model, **more})

    def workers(self):
        return http("GET", self.http + "/workers")[1]

    def query(self, tokens, **more):
        """Tokens matched by instance and rank, as {(instance, rank): tokens}."""
        status, answer = http("POST", self.http + "/query", {"token_ids": tokens, "model_name": self.model, **more})
        if status == 404:
            return {}
        assert status == 200, (status, answer)
        return {(int(i), int(r)): n for i, ranks in answer["scores"].items() for r, n in ranks.items()}

    def dump(self):
        """Its dump: `RouterEvent`s of this model."""
        status, answer = http("GET", self.http + "/dump")
        assert status == 200, (status, answer)
        return answer.get(f"{self.model}:default", {"events": []})["events"]

    def blocks(self, instance=None):
        """What it holds: {(instance, rank, block_hash): tokens_hash}."""
        held = {}
        for event in self.dump():
            data = event["event"]["data"]
            if instance not in (None, event["worker_id"]) or "stored" not in data:
                continue
            for block in data["stored"]["blocks"]:
                held[event["worker_id"], event["event"]["dp_rank"], block["block_hash"]] = block["tokens_hash"]
        return held


class DynamoPublisher(DynamoProcess):
    """A `KvEventPublisher` that listens to ZeroMQ, as in a worker's process, and keeps its own index."""

    def __init__(self, events, block_size=4):
        hosts = ["DYN_EVENT_PLANE_HOST", "DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_SYSTEM_HOST"]
        script = Path(__file__).parent / "programs" / "dynamo_publisher.py"
        env = {name: "127.0.0.1" for name in hosts}
        super().__init__(script, events, block_size, env={**env, "DYN_LOG": "info,dynamo_kv_router::indexer::local=debug"})

    def held(self):
        """The blocks that it has told of: every event that it records is in its log."""
        held = set()
        for line in self.log().splitlines():
            _, _, event = line.partition("Recorded event RouterEvent")
            hashes = {int(hash) for hash in re.findall(r"ExternalSequenceBlockHash\((\d+)\)", event.partition("blocks: [")[2])}
            if "data: Cleared" in event:
                held = set()
            elif "data: Stored" in event:
                held |= hashes
            elif "data: Removed" in event:
                held -= {int(hash) for hash in re.findall(r"ExternalSequenceBlockHash\((\d+)\)", event)}
        return held
