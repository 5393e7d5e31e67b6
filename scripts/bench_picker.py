"""What the endpoint picker costs behind a real Envoy, beside a picker that decides nothing.

Prints one JSON object: CPU of the picker per request, latency through Envoy, and memory with many streams. CPU is read from /proc, so
that it holds on a busy machine too; latencies do not.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from harness.envoy import Envoy, PickerPlane, find_envoy, live  # noqa: E402
from harness.plane import Sim, free_ports  # noqa: E402
from harness.wait import eventually  # noqa: E402

WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you".split()
TICK = os.sysconf("SC_CLK_TCK")


def backend(port):
    """Reads a request to its end, and answers: at once, or with as many chunks as `x-chunks` says."""
    usage = b'{"choices":[{}],"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}'
    event = b'data: {"choices":[{"delta":{"content":"word "}}],"usage":null}\n\n'
    chunk = b"%x\r\n%s\r\n" % (len(event), event)

    async def serve(reader, writer):
        buffer = b""
        try:
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (part := await reader.read(1 << 18)):
                        return
                    buffer += part
                head, _, rest = buffer.partition(b"\r\n\r\n")
                while not rest.endswith(b"0\r\n\r\n"):
                    rest = rest[-8:] + await reader.read(1 << 18)
                buffer = b""
                if b"x-chunks: " in head:
                    count, pause = map(float, head.split(b"x-chunks: ")[1].split(b"\r\n")[0].split(b","))
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
                    for _ in range(int(count)):
                        writer.write(chunk)
                        await writer.drain()
                        await asyncio.sleep(pause)
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(usage), usage))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=2048)
        await server.serve_forever()

    asyncio.run(main())


def cpu(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def switches(process):
    """How often its threads came to a processor: how many wake-ups it took."""
    tasks = [line for task in Path(f"/proc/{process.pid}/task").iterdir() for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in tasks if "ctxt_switches" in line)


def rss(process):
    line = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def prompts(size, count):
    """Bodies of a size: the first half is one of four texts, the rest is each one's own."""
    draw = random.Random(1)
    text = lambda length: " ".join(draw.choice(WORDS) for _ in range(length // 4))[:length]
    shared = [text(size // 2) for _ in range(4)]
    body = lambda n: {"model": "m", "messages": [{"role": "user", "content": shared[n % 4] + text(size // 2)}], "max_tokens": 8}
    return [json.dumps(body(n)).encode() for n in range(count)]


class Client:
    """One connection that is kept."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body, more=""):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}content-length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def finish(self):
        """Reads the answer to its end: Envoy sends it in chunks."""
        tail = head = b""
        while not tail.endswith(b"0\r\n\r\n"):
            part = self.socket.recv(1 << 18)
            assert part, "closed"
            head = head or part[:64]
            tail = (tail + part)[-8:]
        assert b" 200 " in head, head


def load(address, bodies, requests, threads):
    """Latencies in milliseconds, and requests per second."""
    latencies, lock, left = [], threading.Lock(), [requests]

    def work(seed):
        client, at = Client(address), seed
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            begun = time.perf_counter()
            client.send(bodies[at % len(bodies)])
            client.finish()
            latencies.append((time.perf_counter() - begun) * 1000)
            at += threads

    begun = time.perf_counter()
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return latencies, requests / (time.perf_counter() - begun)


def measure(name, process, address, quick):
    scale = 10 if quick else 1
    found = {}
    for size, requests in ((2_000, 4_000 // scale), (220_000, 1_000 // scale)):
        bodies = prompts(size, 32)
        load(address, bodies, 64, 1)
        alone, _ = load(address, bodies, requests // 4, 1)
        before = cpu(process)
        _, rate = load(address, bodies, requests, 8)
        found[f"{size}"] = {
            "cpu_ms_per_request": round((cpu(process) - before) / requests * 1000, 3),
            "requests_per_s_8_clients": round(rate, 1),
            "p50_ms_1_client": round(statistics.median(alone), 3),
        }
    body, count, chunks = prompts(2_000, 1)[0], 20 // min(scale, 4), 5_000
    before, woken, client = cpu(process), switches(process), Client(address)
    for _ in range(count):
        client.send(body, f"x-chunks: {chunks},0\r\n")
        client.finish()
    found["cpu_ms_per_5000_chunks"] = round((cpu(process) - before) / count * 1000, 2)
    found["switches_per_5000_chunks"] = round((switches(process) - woken) / count)
    streams = 1_000 // scale
    empty, clients = rss(process), [Client(address) for _ in range(streams)]
    for one in clients:
        one.send(body, "x-chunks: 40,0.1\r\n")
    peak = 0
    for one in clients:
        one.finish()
        peak = max(peak, rss(process))
    found["rss_mib"] = {"before": round(empty, 1), f"peak_{streams}_streams": round(peak, 1)}
    print(name, json.dumps(found), file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvplane", type=Path, required=True)
    parser.add_argument("--noop", type=Path, required=True)
    parser.add_argument("--alone", type=Path, help="alone_picker: what messages cost without a decision")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a directory with tokenizer.json")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    envoy_binary = find_envoy()
    sink, noop_port, alone_port = free_ports(3)
    serving = subprocess.Popen([sys.executable, __file__, "--backend", str(sink)])
    sim = Sim(options.kvplane, "--model", "m")
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        (model / "tokenizer.json").symlink_to((options.tokenizer / "tokenizer.json").resolve())
        (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}")
        plane = PickerPlane(options.kvplane, f"""
[picker]
listen = "127.0.0.1:0"
[[picker.endpoint]]
address = "127.0.0.1:{sink}"
engine = "e0"
[[engine]]
id = "e0"
kind = "vllm"
model = "m"
events = "{sim.events[0]}"
replay = "{sim.replay[0]}"
[[model]]
name = "m"
tokenizer = "{model}"
""")
    noop = subprocess.Popen([options.noop, f"127.0.0.1:{noop_port}", f"127.0.0.1:{sink}"])
    others = {"noop": (noop, noop_port)}
    if options.alone:
        others["alone"] = (subprocess.Popen([options.alone, f"127.0.0.1:{alone_port}", f"127.0.0.1:{sink}"]), alone_port)
    envoys = []
    try:
        eventually(lambda: live(plane, 1), "the engine is live", 60)
        bootstrap = plane.bootstrap()
        envoys.append(Envoy(envoy_binary, bootstrap))
        address = bootstrap["static_resources"]["clusters"][1]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        found = {}
        for name, (process, port) in others.items():
            address["socket_address"]["port_value"] = port
            envoys.append(Envoy(envoy_binary, bootstrap))
            envoys[-1].wait_healthy()
            found[name] = measure(name, process, envoys[-1].address["inference"], options.quick)
        envoys[0].wait_healthy()
        found["kvplane"] = measure("kvplane", plane.process, envoys[0].address["inference"], options.quick)
        found["by_tokens"] = plane.metric("kvplane_picker_requests_total", outcome="tokens")
        found["without_tokens"] = plane.metric("kvplane_picker_without_tokens_total")
        print(json.dumps(found, indent=1))
    finally:
        for one in envoys:
            one.close()
        for process, _ in others.values():
            process.kill()
        plane.close()
        sim.close()
        serving.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--backend"]:
        backend(int(sys.argv[2]))
    else:
        main()
