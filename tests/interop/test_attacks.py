"""Hostile engines and clients, one at a time, and a good client beside each: what it waits, and what the plane weighs.

Every attack is bounded in count and in time. The plane must live, hear other engines, answer the good client, and keep to a
bound of memory that is given with the attack. The table at the end is for docs/internals/benchmarks.md: `make attacks` makes it with a
release build.
"""

import resource
import signal
import socket
import threading
import time
from concurrent import futures

import grpc
import pytest
from conftest import flag

from harness.certificates import certificates
from harness.hostile import MIB, Good, Http2, grpc_message, health, new_connection, p99, question, row, rss
from harness.plane import Plane, free_ports
from harness.wire import NEWEST as V

pytestmark = pytest.mark.alone

PROMPT = list(range(65))
MEASURED = 1.0  # seconds without the attack, and at least with it
SLOW = 2.0  # what the good client's p99 may be at a busy moment of the machine, whatever it was before
SLOW_CONNECT = 0.9  # the same where it connects anew: less than a SYN takes that finds the queue full and is sent again


@pytest.fixture(scope="module", autouse=True)
def many_files():
    """Thousands of connections need as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16_384 if hard == resource.RLIM_INFINITY else min(hard, 16_384)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Arena:
    """A plane with a good engine and one that is not."""

    def __init__(self, plane, sim, engine):
        self.good, self.evil = sim(), engine()
        self.plane = plane(
            args=["--engine", flag(self.good, id="good", model="good"), "--engine", flag(self.evil, id="evil", model="evil")]
        )
        self.pid = self.plane.process.pid
        self.plane.wait_live("evil")
        self.hears_the_good_engine(PROMPT)

    def hears_the_good_engine(self, prompt):
        self.good.complete(prompt, max_tokens=1)
        self.plane.wait_at(self.good.state()[1] - 1, "good", deadline=20)

    def holds(self, blocks):
        """The evil engine holds some blocks, rightly so."""
        for at in range(0, blocks, 1000):
            hashes = list(range(at + 1, at + 1001))
            self.evil.publish(V.stored(hashes, at or None, [hash % 30_000 for hash in hashes for _ in range(16)], 16))
        self.plane.wait_at(self.evil.next_sequence - 1, "evil", deadline=30)

    def attack(self, name, act, growth, ask=None, prepare=None, slow=SLOW):
        """Runs an attack beside the good client, and checks what is true after all of them. `growth` is in MiB."""
        ask = ask or question(self.plane, PROMPT, "good")
        before = Good(ask, self.pid)
        time.sleep(MEASURED)
        before.stop()
        memory = rss(self.pid)
        if prepare:
            prepare()
        during = Good(ask, self.pid)
        begun = time.monotonic()
        try:
            seen = act()
        finally:
            time.sleep(max(0.0, begun + MEASURED - time.monotonic()))
            during.stop()
        measured = row(name, before, during, memory, seen)
        assert self.plane.process.poll() is None, f"the plane ended: {self.plane.log()[-2000:]}"
        self.hears_the_good_engine([token + 100_000 for token in PROMPT])
        assert not during.failures, f"{len(during.failures)} of {len(during.latencies)} good requests failed: {during.failures[0]}"
        assert p99(during.latencies) <= max(slow, 3 * p99(before.latencies)), measured
        assert during.peak - memory <= growth, measured
        return measured


@pytest.fixture
def arena(plane, sim, engine):
    return Arena(plane, sim, engine)


@pytest.fixture
def closing():
    """Closes what an attack leaves behind."""
    made = []

    def keep(thing):
        made.append(thing)
        return thing

    yield keep
    for thing in made:
        thing.close()


def all_at_once(work, count, seconds=8.0):
    """The same in many threads; how often it came to its end in time without an error."""
    done = []
    threads = [threading.Thread(target=lambda at=at: done.append(work(at)), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(timeout=max(0.0, end - time.monotonic()))
    return done


# --- engines -------------------------------------------------------------------------------------------------------

STORES = {
    "one-block stores": lambda at: V.stored([at + 1], None, [at % 30_000], 1),
    "stores in new places": lambda at: V.stored([at + 1], None, [at % 30_000], 1, medium=f"place-{at}"),
    "stores in new groups": lambda at: V.stored([at + 1], None, [at % 30_000], 1, group_idx=at),
}


@pytest.mark.parametrize("what", STORES)
def test_a1_one_batch_of_many_stores(arena, what):
    count = 20_000

    def act():
        arena.evil.publish(*(STORES[what](at) for at in range(count)))
        time.sleep(2)
        return f"{count} stores in a batch"

    arena.attack(f"A1 {what}", act, growth=128)


def test_a2_large_messages_during_a_stall(arena):
    count, size = 24, 16 * MIB

    def prepare():
        payload = b"\xc1" * size
        arena.plane.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(count):
                arena.evil.publish_payload(payload, ring=False)
        finally:
            arena.plane.process.send_signal(signal.SIGCONT)

    def act():
        time.sleep(3)
        return f"{count} messages of {size // MIB} MiB"

    arena.attack("A2 large messages during a stall", act, growth=256, prepare=prepare)


@pytest.mark.parametrize("field", ["ownership", "lora_name", "extra_keys"])
def test_a8_long_texts(arena, field):
    count, size = 20, 8 * MIB

    def act():
        for at in range(count):
            text = f"{at}" + "x" * size
            value = [[text]] if field == "extra_keys" else text
            arena.evil.publish(V.stored([at + 1], None, [at] * 16, 16, **{field: value}), ring=False)
        time.sleep(1)
        return f"{count} texts of {size // MIB} MiB"

    arena.attack(f"A8 long texts ({field})", act, growth=112)


# --- clients -------------------------------------------------------------------------------------------------------


def test_a3_health_watches_over_one_connection(arena, closing):
    count = 20_000

    def act():
        connection = closing(Http2(arena.plane.grpc))
        end, opened = time.monotonic() + 6, 0
        try:
            while opened < count and time.monotonic() < end and not connection.ended:
                connection.open("/grpc.health.v1.Health/Watch", grpc_message(b""))
                opened += 1
                if opened % 100 == 0:
                    connection.hear()
        except OSError as error:
            return f"{opened} watches, then {error!r}"
        return f"{opened} watches" + (", then the end of the connection" if connection.ended else "")

    arena.attack("A3 Health.Watch over one connection", act, growth=64)


def test_a4_unfinished_grpc_messages(arena, closing):
    connections, announced, sent = 24, 60 * MIB, 12 * MIB

    def pour(_):
        connection = closing(Http2(arena.plane.grpc))
        stream = connection.open("/kvplane.v1.Plane/Query", b"\0" + announced.to_bytes(4, "big"), end=False)
        return connection.pour(stream, bytes(sent), seconds=5)

    def act():
        taken = all_at_once(pour, connections)
        time.sleep(1)
        return f"{sum(taken) // MIB} MiB of {connections} messages taken"

    # A peer may have 128 MiB of requests under way; the allocator keeps some of what was freed.
    arena.attack("A4 unfinished gRPC messages", act, growth=256)


def test_a4_unfinished_http_bodies(arena, closing):
    connections, length = 24, 12 * MIB
    host, port = arena.plane.http.removeprefix("http://").rsplit(":", 1)

    def pour(_):
        connection = closing(socket.create_connection((host, int(port)), timeout=5))
        head = f"POST /v1/query HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        connection.sendall(head.encode() + b'{"model":"')
        taken, end = 0, time.monotonic() + 5
        try:
            while taken < length - 64 * 1024 and time.monotonic() < end:
                taken += connection.send(b"x" * 64 * 1024)
        except OSError:
            pass
        return taken

    def act():
        taken = all_at_once(pour, connections)
        time.sleep(1)
        return f"{sum(taken) // MIB} MiB of {connections} bodies taken"

    arena.attack("A4 unfinished HTTP bodies", act, growth=256)


@pytest.mark.parametrize("path", ["/dump", "/kv_recover?engine=evil"])
def test_a5_http_readers_that_never_read(arena, closing, path):
    arena.holds(60_000)
    host, port = arena.plane.http.removeprefix("http://").rsplit(":", 1)

    def act():
        for _ in range(40):
            connection = closing(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(5)
            connection.connect((host, int(port)))
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        time.sleep(2)
        return "40 requests"

    arena.attack(f"A5 readers that never read ({path.split('?')[0]})", act, growth=192)


CALLS = {
    "Subscribe": ("/kvplane.v1.Plane/Subscribe", {}),
    "SubscribeKvEvents": ("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", {"kvplane_engine": "evil"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a5_subscribers_that_never_read(arena, closing, call):
    arena.holds(60_000)
    path, headers = CALLS[call]

    def act():
        for _ in range(200):
            connection = closing(Http2(arena.plane.grpc, window=1 << 24))
            connection.open(path, grpc_message(b""), **headers)
        time.sleep(2)
        return "200 subscribers"

    arena.attack(f"A5 readers that never read ({call})", act, growth=192)


@pytest.mark.parametrize("listener", ["HTTP", "gRPC"])
def test_a9_idle_connections_and_half_headers(arena, closing, listener):
    address = arena.plane.http.removeprefix("http://") if listener == "HTTP" else arena.plane.grpc
    host, port = address.rsplit(":", 1)

    def act():
        opened = 0
        for at in range(1500):
            try:
                connection = closing(socket.create_connection((host, int(port)), timeout=1))
                if at % 3 == 0:
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-half" if listener == "HTTP" else b"PRI * HTTP/2.0\r\n")
                opened += 1
            except OSError:
                pass
        time.sleep(1)
        return f"{opened} of 1500 connections"

    ask = new_connection(address) if listener == "HTTP" else health(address)
    arena.attack(f"A9 idle connections ({listener})", act, growth=96, ask=ask, slow=SLOW_CONNECT)


def test_a9_half_a_header_is_not_waited_for_for_ever(arena, closing):
    """The documented time is shorter than this test waits."""
    host, port = arena.plane.http.removeprefix("http://").rsplit(":", 1)
    half = closing(socket.create_connection((host, int(port)), timeout=40))
    half.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-half")
    half.recv(4096)  # a status that says so, or the end of the connection; a timeout fails


def test_a9_silent_tls_handshakes(arena, closing, plane, tmp_path):
    certificates(tmp_path)
    keys = [f'listen.tls={{ cert = "{tmp_path / "cert.pem"}", key = "{tmp_path / "key.pem"}" }}']
    arena.plane = plane(args=["--set", *keys, "--engine", flag(arena.good, id="good", model="good")])
    arena.pid = arena.plane.process.pid
    port = int(arena.plane.http.rsplit(":", 1)[1])
    # What is asked for otherwise speaks no TLS here.
    arena.hears_the_good_engine = lambda _: None

    def act():
        opened = 0
        for _ in range(1200):
            try:
                closing(socket.create_connection(("127.0.0.1", port), timeout=1))
                opened += 1
            except OSError:
                pass
        time.sleep(1)
        return f"{opened} of 1200 connections"

    ask = new_connection(f"127.0.0.1:{port}", tmp_path / "ca.pem")
    arena.attack("A9 silent connections before TLS", act, growth=96, ask=ask, slow=SLOW_CONNECT)


PATHS = [
    "/grpc.health.v1.Health/../vllm.grpc.engine.VllmEngine/FlushCache",
    "/grpc.health.v1.Health/%2e%2e/vllm.grpc.engine.VllmEngine/FlushCache",
    "/grpc.health.v1.Health/",
    "/grpc.health.v1.Health/Other",
    "/grpc.health.v1.Health//Check",
    "//grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Check/../../vllm.grpc.engine.VllmEngine/FlushCache",
]


class Front:
    """A plane with keys, a front of it, and a gRPC server behind that, which notes what it is asked for."""

    def __init__(self, binary, engine, folder):
        self.received = []
        received = self.received

        class Everything(grpc.GenericRpcHandler):
            def service(self, details):
                received.append(details.method)

        self.server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Everything()])
        behind = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        (folder / "token").write_text("a-token-of-some-length-0123456789")
        (folder / "token").chmod(0o600)
        config = folder / "kvplane.toml"
        config.write_text(
            f'[[auth.token]]\nname = "reader"\nrole = "read"\nfile = "{folder / "token"}"\n'
            f'[[engine]]\nid = "e0"\nkind = "vllm"\nevents = "{engine.events}"\nreplay = "{engine.replay}"\n'
            f'grpc = "http://127.0.0.1:{behind}"\nfront = "{self.address}"\n'
        )
        self.plane = Plane(binary, "--config", config)
        self.pid = self.plane.process.pid

    def attack(self, name, act):
        """Runs an attack beside a client of the front that comes anew every time."""
        ask = health(self.address)
        before = Good(ask, self.pid)
        time.sleep(MEASURED)
        before.stop()
        self.received.clear()
        memory, during = rss(self.pid), Good(ask, self.pid)
        try:
            seen = act()
            time.sleep(MEASURED)
        finally:
            during.stop()
        measured = row(name, before, during, memory, seen())
        assert not during.failures, f"{len(during.failures)} of {len(during.latencies)} good requests failed: {during.failures[0]}"
        return measured

    def close(self):
        self.server.stop(None)
        self.plane.close()


@pytest.fixture
def front(binary, engine, tmp_path, closing):
    return closing(Front(binary, engine(), tmp_path))


def test_a9_idle_connections_at_a_front(front, closing):
    host, port = front.address.rsplit(":", 1)

    def act():
        opened, end = 0, time.monotonic() + 5
        while opened < 1200 and time.monotonic() < end:
            try:
                # Another peer than the good client: of one peer, the oldest silent connection makes room.
                closing(socket.create_connection((host, int(port)), timeout=0.5, source_address=("127.0.0.2", 0)))
                opened += 1
            except OSError:
                pass
        return lambda: f"{opened} of 1200 connections"

    front.attack("A9 idle connections (front)", act)


def test_a10_a_front_passes_on_nothing_but_health_without_a_token(front, closing):
    def passed():
        return sorted(set(front.received) - {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})

    def act():
        for path in PATHS:
            connection = closing(Http2(front.address))
            connection.open(path, grpc_message(b""))
            connection.hear(0.3)
        return lambda: f"{len(passed())} of {len(PATHS)} paths passed on"

    front.attack("A10 paths of a front", act)
    assert not passed()


def test_d1_a_batch_of_empty_questions(arena):
    size = 4 * MIB

    def act():
        with grpc.insecure_channel(arena.plane.grpc, options=[("grpc.max_receive_message_length", -1)]) as channel:
            call = channel.stream_stream("/kvplane.v1.Plane/QueryStream")
            try:
                answers = [len(answer) for answer in call(iter([b"\x0a\x00" * (size // 2)]), timeout=20)]
                return f"{len(answers)} answers of {sum(answers)} bytes"
            except grpc.RpcError as error:
                return error.code().name

    arena.attack("D1 a batch of empty questions", act, growth=96)
