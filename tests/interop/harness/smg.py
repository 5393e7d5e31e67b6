"""SMG's stock gateway, and gRPC engines with a script instead of a model behind it."""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
from concurrent import futures
from pathlib import Path

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_servicer import kv_relay

from .plane import _OPENER, free_ports, http
from .wait import eventually

MODEL = "scripted"
BLOCK = 16
VOCABULARY = 2000
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def tokenizer(folder):
    """A tokenizer without a model: the word `w100` is the token 100."""
    vocabulary = {f"w{id}": id for id in range(3, VOCABULARY)} | {"<unk>": 0, "<s>": 1, "</s>": 2}
    special = [
        {"id": id, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for id, word in enumerate(["<unk>", "<s>", "</s>"])
    ]
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCABULARY}))
    return folder


class Worker(vllm_engine_pb2_grpc.VllmEngineServicer):
    """An engine's gRPC server: it answers any prompt with four words, and tells its load."""

    def __init__(self, tokenizer_path, address="127.0.0.1:0"):
        self.tokenizer_path = str(tokenizer_path)
        self.generated = []  # the token ids of every prompt
        self.waiting = 0  # told as the load
        self.metadata = []
        self.subscriptions = []
        self.flush = None  # what a flush does; without, there is none
        self._ended = threading.Event()
        self.address = self._serve(address)

    def _serve(self, address):
        self._server = grpc.server(futures.ThreadPoolExecutor(32))
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, self._server)
        address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        self._server.start()
        return address

    def close(self):
        self._ended.set()
        self._server.stop(None).wait()

    def HealthCheck(self, request, context):
        return vllm_engine_pb2.HealthCheckResponse(healthy=True, message="scripted")

    def GetModelInfo(self, request, context):
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=self.tokenizer_path, tokenizer_path=self.tokenizer_path, served_model_name=MODEL,
            is_generation=True, max_context_length=8192, vocab_size=VOCABULARY, model_type="llama", eos_token_ids=[2],
            max_req_input_len=8000,
        )

    def GetServerInfo(self, request, context):
        return vllm_engine_pb2.GetServerInfoResponse(server_type="vllm-grpc", data_parallel_size=1, block_size=BLOCK)

    def GetLoads(self, request, context):
        load = vllm_engine_pb2.SchedulerLoad(num_running_reqs=0, num_waiting_reqs=self.waiting, max_running_requests=64)
        return vllm_engine_pb2.GetLoadsResponse(version="scripted", dp_rank_count=1, loads=[load])

    def FlushCache(self, request, context):
        if self.flush is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "scripted without")
        self.flush()
        return common_pb2.FlushCacheResponse(success=True, message="scripted")

    def Generate(self, request, context):
        prompt = list(request.tokenized.input_ids)
        self.generated.append(prompt)
        self.metadata.append(dict(context.invocation_metadata()))
        output = [3, 4, 5, 6]
        if request.stream:
            for at, token in enumerate(output):
                chunk = vllm_engine_pb2.GenerateStreamChunk(token_ids=[token], prompt_tokens=len(prompt), completion_tokens=at + 1)
                yield vllm_engine_pb2.GenerateResponse(chunk=chunk)
        complete = vllm_engine_pb2.GenerateComplete(
            output_ids=output, finish_reason="length", prompt_tokens=len(prompt), completion_tokens=len(output),
        )
        yield vllm_engine_pb2.GenerateResponse(complete=complete)

    def SubscribeKvEvents(self, request, context):
        """Nothing but loads: the events are for the plane to tell."""
        self.subscriptions.append(request.start_sequence_number)
        sample = 0
        while context.is_active() and not self._ended.wait(0.2):
            sample += 1
            load = common_pb2.EngineLoad(
                waiting_requests=self.waiting, max_running_requests=64, sample=sample, load_only=True, token_usage=0.25,
            )
            yield common_pb2.KvEventBatch(load=load)


class RelayWorker(Worker):
    """The same with SMG's own Python relay of an engine's events, on an event loop of its own."""

    def __init__(self, tokenizer_path, engine):
        self.events, self.replay = engine.events, engine.replay
        super().__init__(tokenizer_path)

    async def SubscribeKvEvents(self, request, context):
        sources = [kv_relay.RankSource(0, self.events, self.replay)]
        async for batch in kv_relay.relay(sources, kv_relay.Engine.VLLM, request.start_sequence_number, context, hwm=0):
            yield batch

    def _serve(self, address):
        ready = futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(address, ready)), daemon=True)
        self._thread.start()
        return ready.result(timeout=10)

    async def _run(self, address, ready):
        self._loop, self._close = asyncio.get_running_loop(), asyncio.Event()
        server = grpc.aio.server(futures.ThreadPoolExecutor(8))  # the threads are for the calls that are no coroutines
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)
        port = server.add_insecure_port(address)
        await server.start()
        ready.set_result(f"127.0.0.1:{port}")
        await self._close.wait()
        await server.stop(None)

    def close(self):
        self._loop.call_soon_threadsafe(self._close.set)
        self._thread.join(timeout=10)


class Gateway:
    """A running `smg launch`."""

    def __init__(self, addresses, *words):
        self.port, self.metrics_port = free_ports(2)
        self._directory = tempfile.TemporaryDirectory(prefix="kvplane-smg-")
        self.log_path = Path(self._directory.name) / "log"
        command = [
            str(Path(sys.executable).parent / "smg"), "launch", "--host", "127.0.0.1", "--port", str(self.port),
            "--worker-urls", *(f"grpc://{address}" for address in addresses),
            "--policy", "cache_aware", "--kv-index", "chain", "--block-size", str(BLOCK),
            "--prometheus-host", "127.0.0.1", "--prometheus-port", str(self.metrics_port), "--log-level", "debug", *words,
        ]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_ready(self, workers):
        def look():
            assert self.process.poll() is None, self.log()
            try:
                status, body = http("GET", f"{self.url}/workers")
            except OSError:
                return False
            return status == 200 and sum(1 for w in body["workers"] if w.get("is_healthy", True)) >= workers
        eventually(look, lambda: f"{workers} workers:\n{self.log()[-5000:]}", 30)
        self.wait_serving()

    def complete(self, prompt, **more):
        """Status and body of a completion."""
        words = " ".join(f"w{token}" for token in prompt)
        return http("POST", f"{self.url}/v1/completions", {"model": MODEL, "prompt": words, "max_tokens": 4, **more})

    def wait_serving(self):
        """Waits until prompts are answered: workers, and the tokenizer too, register in the background."""
        eventually(lambda: self.complete([7])[0] == 200, lambda: f"an answer:\n{self.log()[-5000:]}", 30)

    def ask(self, prompt):
        """Sends a prompt, and returns what the gateway's log says of where it went: (worker, branch, blocks of overlap).

        With an empty index there is nothing to say: then the branch is None.
        """
        said = self.log_path.stat().st_size
        status, body = self.complete(prompt)
        assert status == 200, (status, body, self.log()[-3000:])
        request = re.escape("-".join(body["id"].split("-")[:2]))
        line = re.compile(
            rf'request_id="{request}".*Event-driven routing worker="grpc://([^"]+)" branch="(\w+)" overlap_blocks=(\d+)'
        )
        ended = re.compile(rf'request_id="{request}".*finished processing request')
        eventually(lambda: ended.search(self.log(said)), lambda: f"the end of {request}:\n{self.log(said)}")
        found = line.search(self.log(said))
        return (found[1], found[2], int(found[3])) if found else (None, None, 0)

    def log(self, since=0):
        """What it logged, from a byte on."""
        with self.log_path.open("rb") as log:
            log.seek(since)
            return _ANSI.sub("", log.read().decode(errors="replace"))

    def metric(self, name, **labels):
        """The sum of a metric's series with these labels."""
        total = 0.0
        for line in self.metrics().splitlines():
            if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def metrics(self):
        with _OPENER.open(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as response:
            return response.read().decode()

    def close(self):
        # A polite end takes it seconds, and nobody is left to be polite to.
        self.process.kill()
        self.process.wait()
        self._directory.cleanup()
