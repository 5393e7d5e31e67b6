"""A running `kvplane serve` (or `sim`), seen from outside."""

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from .wait import eventually

# Nothing of the machine's own proxy settings may stand between a test and loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http(method, url, body=None):
    """Status and decoded body of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json"})
    try:
        with _OPENER.open(request, timeout=10) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


ROOT = Path(__file__).resolve().parents[3]


def find_binary():
    """The `kvplane` under test: KVPLANE_BIN, or what cargo builds from this checkout."""
    if given := os.environ.get("KVPLANE_BIN"):
        path = Path(given)
        assert path.is_file(), f"KVPLANE_BIN: {path} is not there"
        return path
    cargo = os.environ.get("CARGO", "cargo")
    build = [cargo, "build", "-p", "kvplane", "--message-format=json-render-diagnostics"]
    done = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        record = json.loads(line)
        if record.get("executable") and record["target"]["name"] == "kvplane":
            return Path(record["executable"])
    raise AssertionError("cargo built no kvplane")


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVPLANE__")}
    return {**kept, **more}


# Every port that `free_ports` has returned: binding a port does not show that an earlier caller still means to use it,
# and Linux lets two sockets with SO_REUSEADDR bind the same port as long as neither listens.
_GIVEN = set()


def _range_of_ports():
    """KVPLANE_TEST_PORTS (`low-high`), or all that the system does not hand out by itself; of several workers, each has a part."""
    low, high = map(int, os.environ.get("KVPLANE_TEST_PORTS", "15000-32000").split("-"))
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    share = (high - low) // workers
    first = low + int(worker.removeprefix("gw")) * share
    return range(first, first + share)


def free_ports(count, together=False):
    """Ports that nobody has now: together, they follow each other.

    They are below those that the system hands out by itself: a server can come back to them, and nobody who dials them
    meanwhile can be given the very port as his own.
    """
    while True:
        with ExitStack() as held:
            ports = []
            for at in range(count):
                port = ports[0] + at if together and ports else random.choice(_range_of_ports())
                if port in _GIVEN or port in ports or port not in _range_of_ports():
                    break
                one = held.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    one.bind(("127.0.0.1", port))
                except OSError:
                    break
                ports.append(port)
            if len(ports) == count:
                _GIVEN.update(ports)
                return ports


class Process:
    """A process whose log is JSON lines on standard error."""

    def __init__(self, binary, *words, env=None):
        self._directory = tempfile.TemporaryDirectory(prefix="kvplane-interop-")
        self.log_path = Path(self._directory.name) / "stderr"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(binary), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=env or clean_environment(),
            )

    def log(self):
        return self.log_path.read_text(errors="replace")

    def logged(self, message, count=1):
        """The first `count` log records with this message; waits for them."""

        def look():
            assert self.process.poll() is None, f"exited with {self.process.returncode}:\n{self.log()}"
            records = [json.loads(line) for line in self.log().splitlines() if line.startswith("{") and line.endswith("}")]
            found = [record for record in records if record.get("message") == message]
            return found[:count] if len(found) >= count else None

        return eventually(look, lambda: f"log line {message!r} in\n{self.log()}")

    def stop(self, how=signal.SIGTERM):
        """Asks it to end and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within 10 s of a signal:\n{self.log()}") from None

    def close(self):
        """Ends it however it is, and checks that nothing in it broke."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        log = self.log()
        self._directory.cleanup()
        assert "panicked" not in log, log


class Plane(Process):
    """`kvplane serve` on free ports, or where it was before."""

    def __init__(self, binary, *words, env=None, grpc="127.0.0.1:0", http="127.0.0.1:0"):
        listen = ["--http", http, "--grpc", grpc, "--log-format", "json"]
        super().__init__(binary, "serve", *listen, *words, env=env)
        self.binary = binary
        (serving,) = self.logged("serving")
        self.http = f"http://{serving['http']}"
        self.grpc = serving["grpc"]

    def get(self, path):
        return http("GET", self.http + path)

    def status(self, engine=None, rank=0):
        """The status of one stream."""
        engines = self.get("/v1/status")[1]["engines"]
        found = [e for e in engines if engine in (None, e["id"])]
        assert len(found) == 1, (engine, engines)
        return found[0]["ranks"][rank]

    def wait(self, condition, what="", engine=None, rank=0, deadline=15.0):
        """Waits until a stream's status is as wanted, and returns it."""
        last = {}

        def look():
            last.update(self.status(engine, rank))
            return last if condition(last) else None

        return dict(eventually(look, lambda: f"{what}; last {json.dumps(last)}\n{self.log()[-3000:]}", deadline))

    def wait_live(self, engine=None, rank=0):
        return self.wait(lambda s: s["continuity"] == "live", "live", engine, rank)

    def wait_at(self, sequence, engine=None, rank=0, deadline=15.0):
        """Waits until everything up to an engine's sequence is applied and the stream stands."""
        return self.wait(
            lambda s: s["last_sequence"] == sequence and s["continuity"] == "live",
            f"live at engine sequence {sequence}", engine, rank, deadline,
        )

    def recover(self, **question):
        """Status and answer of /kv_recover."""
        query = "&".join(f"{key}={value}" for key, value in question.items())
        return self.get(f"/kv_recover?{query}")

    def command(self, *words):
        """Runs another `kvplane` against this one."""
        return run(self.binary, *words[:1], "--plane", f"http://{self.grpc}", *words[1:])

    def copies(self, engine=None):
        """What `kvplane dump -o json` says is held: copies by (tier, group, hash)."""
        words = ["dump", "-o", "json"] + (["--engine", engine] if engine else [])
        done = self.command(*words)
        assert done.returncode == 0, done.stderr
        held = {}
        for line in done.stdout.splitlines():
            for stored in json.loads(line)["snapshot"]["stored"]:
                for block in stored["blocks"]:
                    if block["copies"]:
                        key = (stored["place"]["tier"], stored["place"]["group"], int(block["hash"]))
                        assert key not in held, f"{key} is told twice"
                        held[key] = block["copies"]
        return held

    def held(self, engine=None):
        """The hashes that are held anywhere."""
        return {hash for _, _, hash in self.copies(engine)}


class Report(Process):
    """`kvplane report`: what an engine holds, told to a server."""

    def __init__(self, binary, engine, server, *words, replica="r", model="m", tenant="t", window="50ms", page=""):
        events, replay = engine.events, engine.replay
        if isinstance(engine, Sim):
            events, replay = events[0], replay[0]
        elif not engine.has_replay:
            replay = "off"
        known = ["--engine-endpoint", events, "--server", server, "--topic", "", "--window", window, "--engine-metrics-url", page]
        named = ["--replica-id", replica, "--model-id", model, "--tenant-id", tenant]
        ours = ["--metrics-listen", "127.0.0.1:0", "--log-format", "json"]
        if replay != "off":
            ours += ["--replay", replay]
        super().__init__(binary, "report", *known, *named, *ours, *words)
        self.http = f"http://{self.logged('metrics')[0]['address']}"

    def metric(self, name):
        """The sum of a metric's series."""
        page = http("GET", f"{self.http}/metrics")[1]
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.split("{")[0] == name)


class Sim(Process):
    """`kvplane sim` on free ports; those of several ranks follow each other."""

    def __init__(self, binary, *words, ranks=1):
        # One stretch for both: two that are found one after the other may overlap.
        events = free_ports(2 * ranks, together=True)[0] if ranks > 1 else 0
        replay = events and events + ranks
        free = ["--events", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}", "--http", "127.0.0.1:0"]
        super().__init__(binary, "sim", *free, "--ranks", ranks, "--log-format", "json", *words)
        profile = words[words.index("--profile") + 1] if "--profile" in words else "vllm"
        self.software = profile.split("-")[0]
        published = self.logged("publishing", ranks)
        self.events = [record["events"] for record in published]
        self.replay = [record["replay"] for record in published]
        self.http = f"http://{self.logged('http')[0]['address']}"
        self.grpc = self.logged("grpc")[0]["address"] if "--grpc" in words else None

    def complete(self, prompt, max_tokens=16, **more):
        status, body = http("POST", self.http + "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **more})
        assert status == 200, body
        return body

    def fault(self, **fault):
        status, body = http("POST", self.http + "/sim/fault", fault)
        assert status == 200, body

    def operations(self, **conduct):
        """How operations go from now on; without a word, rightly."""
        self.fault(operations=conduct)

    def truth(self):
        """All that it says of itself."""
        return http("GET", self.http + "/sim/state")[1]

    def state(self, rank=0):
        """Copies by hash, and the next sequence."""
        found = self.truth()["ranks"][rank]
        return {int(hash): copies for hash, copies in found["blocks"].items()}, found["next_sequence"]


def run(binary, *words, env=None, timeout=60):
    """Runs a command to its end."""
    return subprocess.run(
        [str(binary), *map(str, words)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, env=env or clean_environment(),
    )
