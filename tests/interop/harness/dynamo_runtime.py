"""Dynamo's programs that find each other: workers, mocker, router, frontend and the bridge, with discovery in a folder.

No etcd and no NATS: discovery by files, requests over TCP, events over ZeroMQ, all on loopback.
"""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

from .dynamo import PYTHON, DynamoProcess
from .plane import ROOT, free_ports, http
from .smg import tokenizer

HERE = Path(__file__).resolve().parent
BRIDGE = ROOT / "python" / "kvplane" / "dynamo.py"


class Space:
    """What programs of one Dynamo share: the folder of discovery, a model's folder, an endpoint, a block size."""

    def __init__(self, endpoint="test.backend.generate", block_size=4):
        self._directory = tempfile.TemporaryDirectory(prefix="kvplane-dynamo-space-")
        self.endpoint, self.block_size = endpoint, block_size
        self.model = str(tokenizer(Path(self._directory.name) / "model"))
        # Dynamo's frontend wants to know the shape of a model, too.
        config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2000, "hidden_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096,
            "bos_token_id": 1, "eos_token_id": 2,
        }
        (Path(self.model) / "config.json").write_text(json.dumps(config))
        self.env = {
            "DYN_FILE_KV": str(Path(self._directory.name) / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_SELF_HOST_METADATA": "0",
            "HF_HUB_OFFLINE": "1",
            # Where it keeps copies of models' files.
            "HOME": self._directory.name,
        }
        self._made = []

    def keep(self, process):
        self._made.append(process)
        return process

    def fleet(self):
        return self.keep(Fleet(self))

    def bridge(self, **workers):
        """`python -m kvplane.dynamo` for `{worker id: address}`."""
        return self.keep(Bridge(self, workers))

    def close(self):
        for process in reversed(self._made):
            process.close()
        self._directory.cleanup()


class Fleet:
    """Workers and routers in one process of Dynamo's environment; see dynamo_fleet.py."""

    def __init__(self, space):
        self._log = tempfile.TemporaryFile(mode="w+")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "KVPLANE__"))}
        words = [str(PYTHON), "-P", str(HERE / "dynamo_fleet.py"), space.endpoint, space.model, str(space.block_size)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**kept, **space.env}
        )
        # A program that hangs is ended, so that whoever reads from it goes on.
        self._watchdog = threading.Timer(90, self.process.kill)
        self._watchdog.start()

    def ask(self, do, **details):
        self.process.stdin.write(json.dumps({"do": do, **details}) + "\n")
        self.process.stdin.flush()
        # Dynamo's own log lines may come in between.
        while line := self.process.stdout.readline():
            if line.startswith(('{"answer"', '{"error"')):
                answer = json.loads(line)
                assert "answer" in answer, (do, answer)
                return answer["answer"]
        self._log.seek(0)
        raise AssertionError(f"Dynamo's process ended:\n{self._log.read()[-3000:]}")

    def worker(self, token):
        return self.ask("worker", token=token)

    def router(self, name, workers=1):
        """Makes a router once there are so many workers; returns their ids."""
        return self.ask("router", name=name, workers=workers)

    def held(self, name):
        """What a router's index holds: {(worker, rank): {block hash: tokens hash}}."""
        held = {}
        for event in self.ask("dump", name=name):
            blocks = held.setdefault((event["worker_id"], event["event"]["dp_rank"]), {})
            blocks.update({b["block_hash"]: b["tokens_hash"] for b in event["event"]["data"]["stored"]["blocks"]})
        return held

    def scores(self, name, tokens):
        """Blocks on the device by (worker, rank), without those that have none."""
        rows = self.ask("scores", name=name, tokens=tokens)
        return {(row["worker_id"], row["dp_rank"]): row["device_blocks"] for row in rows if row["device_blocks"]}

    def best(self, name, tokens):
        worker, _, blocks = self.ask("best", name=name, tokens=tokens)
        return worker, blocks

    def close(self):
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            pipe.close()


class Bridge(DynamoProcess):
    """The bridge from the sources, as a program."""

    def __init__(self, space, workers):
        words = [word for worker, events in workers.items() for word in ("--worker", f"{worker}={events}")]
        # -P: the bridge is called dynamo too, and its folder must not come before Dynamo's.
        super().__init__(
            "-P", BRIDGE, "--endpoint", space.endpoint, "--block-size", space.block_size, *words, env=space.env
        )
        self.eventually(lambda: "feeding" in self.log(), "feeding", 30)


class Mocker(DynamoProcess):
    """Dynamo's simulated engines: `events` and `replay` are addresses by worker."""

    def __init__(self, space, workers=2, kind="vllm", blocks=4096):
        ports = free_ports(2 * workers)
        self.events = [f"tcp://127.0.0.1:{port}" for port in ports[:workers]]
        self.replay = [f"tcp://127.0.0.1:{port}" for port in ports[workers:]]
        joined = lambda some: ",".join(map(str, some))
        super().__init__(
            "-m", "dynamo.mocker", "--model-path", space.model, "--model-name", "m", "--endpoint", f"dyn://{space.endpoint}",
            "--num-workers", workers, "--block-size", space.block_size, "--engine-type", kind, "--num-gpu-blocks-override", blocks,
            "--zmq-kv-events-ports", joined(ports[:workers]), "--zmq-replay-ports", joined(ports[workers:]), "--speedup-ratio", 1000,
            "--kv-bytes-per-token", 1024,
            env=space.env,
        )


class Frontend(DynamoProcess):
    """Dynamo's frontend, routing by cached blocks."""

    def __init__(self, space):
        (port,) = free_ports(1)
        self.http = f"http://127.0.0.1:{port}"
        super().__init__(
            "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", port, "--router-mode", "kv",
            "--kv-cache-block-size", space.block_size, env=space.env,
        )
        self.eventually(self._serves, "the model is served", 30)

    def _serves(self):
        try:
            return bool(http("GET", self.http + "/v1/models")[1]["data"])
        except OSError:
            return False

    def complete(self, tokens):
        """Which word answers a prompt of these tokens."""
        prompt = " ".join(f"w{token}" for token in tokens)
        status, answer = http("POST", self.http + "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1})
        assert status == 200, (status, answer)
        return answer["choices"][0]["text"].strip()


class SelectService(DynamoProcess):
    """Dynamo's selection service: an index, a scheduler and bookings in one process."""

    def __init__(self, space, peers=()):
        (port,) = free_ports(1)
        self.http = f"http://127.0.0.1:{port}"
        words = ["--indexer-peers", ",".join(peers)] if peers else []
        super().__init__("-m", "dynamo.select_service", "--port", port, "--threads", 2, *words, env=space.env)
