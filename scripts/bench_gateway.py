"""The gateway beside SMG's and vLLM's router: the same engines, the same load, one run.

Prints one JSON object: for each of them added latency of events at many streams, CPU per request at two sizes of bodies, and memory
with many open streams. CPU is read from /proc, so that it holds on a busy machine too; latencies do not, and only their ratios within
one run say something. `direct` is no gateway at all: what it shows is not a gateway's.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK")
PAUSE_US = 200_000
# Peers refuse or queue what is more than a few hundred, unless configured otherwise.
MANY = ["--max-concurrent-requests", "40000"]


def tree(pid):
    """A process and all below it."""
    found, open_ = [], [pid]
    while open_:
        one = open_.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            open_ += map(int, task.read_text().split())
    return found


def cpu(pid):
    """Seconds of processor time, user and system."""
    fields = [Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split() for one in tree(pid)]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICK


def rss(pid):
    """MiB in memory."""
    lines = [line for one in tree(pid) for line in Path(f"/proc/{one}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def served(address, deadline=60):
    """Waits until a chat is answered."""
    end, body = time.monotonic() + deadline, json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nobody answers at {address}")


class Subject:
    """A gateway over engines."""

    def __init__(self, name, words, address, directory):
        self.name, self.address = name, address
        self.log = open(Path(directory) / f"{name}.log", "wb")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, start_new_session=True)
        served(address)

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()


def kvplane(binary, engines, directory, sims=None, vocabulary=None):
    port = free_port()
    config = Path(directory) / "kvplane.toml"
    text = f'[listen]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n[gateway]\nlisten = "127.0.0.1:{port}"\n'
    for at, engine in enumerate(engines):
        # Without simulators nobody publishes: what is measured is the way of a request, not a decision over caches.
        events = f'events = "{sims[at].events[0]}"\nreplay = "{sims[at].replay[0]}"' if sims else f'events = "tcp://127.0.0.1:{free_port()}"'
        text += f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\n{events}\nhttp = "http://{engine}"\n'
    if vocabulary:
        text += f'[[model]]\nname = "m"\ntokenizer = "{vocabulary}"\n'
    config.write_text(text)
    return Subject("kvplane", [binary, "serve", "--config", str(config)], f"127.0.0.1:{port}", directory)


def smg(engines, directory):
    port, program = free_port(), ROOT / ".venv" / "bin" / "smg"
    words = [str(program), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--prometheus-port", str(free_port()), *MANY]
    return Subject("smg", [*words, "--worker-urls", *(f"http://{engine}" for engine in engines)], f"127.0.0.1:{port}", directory)


def vllm_router(engines, directory):
    port, program = free_port(), ROOT / ".venv-router" / "bin" / "vllm-router"
    words = [str(program), "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--prometheus-port", str(free_port()), *MANY]
    return Subject("vllm-router", [*words, "--worker-urls", *(f"http://{engine}" for engine in engines)], f"127.0.0.1:{port}", directory)


def load(program, *words):
    print("bench-gateway:", *words, file=sys.stderr)
    ran = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True, timeout=600)
    return json.loads(ran.stdout)


def per_request(program, subject, count, size):
    """Microseconds of processor time for one request."""
    load(program, "requests", subject.address, count // 10, 8, size)
    before = cpu(subject.process.pid)
    done = load(program, "requests", subject.address, count, 8, size)
    assert done["errors"] == 0, (subject.name, done)
    return round(1e6 * (cpu(subject.process.pid) - before) / count, 1)


def open_streams(program, subject, count):
    """MiB with this many open streams, and without."""
    before = rss(subject.process.pid)
    print("bench-gateway: hold", subject.name, count, file=sys.stderr)
    holding = subprocess.Popen([program, "hold", subject.address, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    opened = holding.stdout.readline().strip()
    after = rss(subject.process.pid)
    holding.kill()
    holding.wait()
    return {"streams": int(opened or 0), "before_mib": round(before), "mib": round(after)}


class Replay:
    """A trace of Mooncake's format over simulated engines that take time: what was delivered from caches, and when the first token came.

    Prompts are scaled down: a block of 512 tokens has 512 / SCALE here, and engines compute as much slower.
    """

    SCALE = 16
    PREFILL = 16_000
    BLOCK = 512 // SCALE

    def __init__(self, path, speed, requests):
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()[:requests]]
        begin = rows[0]["timestamp"]
        self.rows = [((row["timestamp"] - begin) / 1e3 / speed, row["hash_ids"], row["output_length"]) for row in rows]

    def text(self, ids):
        """A text with as much in common with others as the ids have."""
        return "".join(f"{one:08x} " * (self.BLOCK // 9 + 1) for one in ids)[: self.BLOCK * len(ids)]

    def run(self, address):
        lock, late, cached, prompt, errors = threading.Lock(), [], 0, 0, 0

        def one(ids, output):
            nonlocal cached, prompt, errors
            body = {
                "model": "m", "messages": [{"role": "user", "content": self.text(ids)}], "max_tokens": max(1, output // self.SCALE),
                "stream": True, "stream_options": {"include_usage": True},
            }
            begun, first, usage = time.monotonic(), None, None
            try:
                connection = http.client.HTTPConnection(address, timeout=600)
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                for line in answer:
                    if line.startswith(b"data: {"):
                        first = first or time.monotonic()
                        usage = json.loads(line[6:]).get("usage") or usage
                connection.close()
            except OSError:
                pass
            with lock:
                if not (first and usage):
                    errors += 1
                    return
                late.append(first - begun)
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                prompt += usage["prompt_tokens"]

        threads, start = [], time.monotonic()
        for at, ids, output in self.rows:
            time.sleep(max(0.0, start + at - time.monotonic()))
            threads.append(threading.Thread(target=one, args=(ids, output), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
        late.sort()
        mean = sum(late) / max(1, len(late))
        return {
            "requests": len(self.rows), "errors": errors, "hit_rate": round(cached / max(1, prompt), 4),
            "ttft_mean_ms": round(1e3 * mean, 1), "ttft_p99_ms": round(1e3 * late[int(0.99 * (len(late) - 1))], 1) if late else None,
        }


def simulated(binary, directory):
    """Eight engines with caches that hold a part of what they are asked, new for each that is measured."""
    from harness.plane import Sim

    pace = ["--prefill-rate", Replay.PREFILL / Replay.SCALE, "--token-ms", 12]
    return [Sim(binary, "--model", "m", "--blocks", 2048, *pace) for _ in range(8)]


def replayed(arguments, directory):
    """The trace, over each gateway."""
    sys.path.insert(0, str(ROOT / "tests" / "interop"))
    from test_envoy_engines import CHATML, byte_level

    replay, found = Replay(arguments.trace, arguments.speed, arguments.requests), {}
    vocabulary = Path(directory) / "vocabulary"
    vocabulary.mkdir()
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": byte_level(), "merges": [],
    }
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": pre,
        "post_processor": None, "decoder": pre, "model": model,
    }
    (vocabulary / "tokenizer.json").write_text(json.dumps(tokenizer))
    (vocabulary / "chat_template.jinja").write_text(CHATML)
    for make in (None, smg, vllm_router):
        sims = simulated(arguments.kvplane, directory)
        engines = [sim.http.removeprefix("http://") for sim in sims]
        try:
            subject = make(engines, directory) if make else kvplane(arguments.kvplane, engines, directory, sims, vocabulary)
            found[subject.name] = replay.run(subject.address)
            subject.close()
        except (OSError, SystemExit) as error:
            print(f"bench-gateway: {error}", file=sys.stderr)
        finally:
            for sim in sims:
                sim.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvplane", required=True)
    parser.add_argument("--load", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--open", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", help="a trace of Mooncake's format: replay it alone, over eight simulated engines")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=1_000)
    arguments = parser.parse_args()
    if arguments.trace:
        print(json.dumps({"load": os.getloadavg(), **replayed(arguments, tempfile.mkdtemp(prefix="bench-gateway-"))}, indent=1))
        return
    streams, opened, rounds = (200, 500, 1) if arguments.quick else (arguments.streams, arguments.open, arguments.rounds)
    small, large = (500, 50) if arguments.quick else (10_000, 1_000)
    directory = tempfile.mkdtemp(prefix="bench-gateway-")
    engines = [subprocess.Popen([arguments.load, "engine"], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    addresses = [engine.stdout.readline().strip() for engine in engines]
    subjects = []
    try:
        subjects.append(kvplane(arguments.kvplane, addresses, directory))
        for make in (smg, vllm_router):
            try:
                subjects.append(make(addresses, directory))
            except (OSError, SystemExit) as error:
                print(f"bench-gateway: without {make.__name__}: {error}", file=sys.stderr)
        found = {subject.name: {"latency": [], "cpu_us": {}} for subject in subjects}
        direct = []
        # One after the other and again: what the machine does else falls on all of them.
        for _ in range(rounds):
            direct.append(load(arguments.load, "streams", addresses[0], streams, 20, PAUSE_US))
            for subject in subjects:
                found[subject.name]["latency"].append(load(arguments.load, "streams", subject.address, streams, 20, PAUSE_US))
        base = {key: min(one[key] for one in direct) for key in ("p50_us", "p99_us")}
        for subject in subjects:
            mine = found[subject.name]
            best = {key: min(one[key] for one in mine["latency"]) for key in base}
            mine["added_us"] = {key.removesuffix("_us"): round(best[key] - base[key], 1) for key in base}
            mine["errors"] = sum(one["errors"] for one in mine["latency"])
            for size, count in ((2 << 10, small), (220 << 10, large)):
                mine["cpu_us"][f"{size >> 10} KiB"] = [per_request(arguments.load, subject, count, size) for _ in range(rounds)]
        for subject in subjects:
            found[subject.name]["open"] = open_streams(arguments.load, subject, opened)
        print(json.dumps({"streams": streams, "direct": direct, "load": os.getloadavg(), **found}, indent=1))
    finally:
        for subject in subjects:
            subject.close()
        for engine in engines:
            engine.kill()


if __name__ == "__main__":
    main()
