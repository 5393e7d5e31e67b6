"""Recovery from peers: another kvplane, and Dynamo's standalone indexer (1.6.1 from PyPI).

The scenario is NVIDIA's sync test of indexers: one is told half of the blocks, another one starts with it as its peer, the rest is
told to both, and both hold everything.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.certificates import certificates
from harness.dynamo import needs_dynamo
from harness.plane import http
from harness.wait import eventually
from harness.wire import NEWEST as V

BLOCK = 4


def tokens(number):
    return [number * BLOCK + at for at in range(BLOCK)]


def stores(numbers):
    """Blocks of one prompt: each builds on the one before."""
    return [V.stored([number + 1], number or None, tokens(number), BLOCK) for number in numbers]


def prompt(count):
    return [token for number in range(count) for token in tokens(number)]


def register(plane, e, instance=7):
    body = {"instance_id": instance, "endpoint": e.events, "model_name": "m", "block_size": BLOCK}
    if e.has_replay:
        body["replay_endpoint"] = e.replay
    status, answer = http("POST", plane.http + "/register", body)
    assert status == 201, answer


def blocks(plane, instance=7):
    part = plane.get("/dump")[1].get("m:default", {"events": []})
    return {
        block["block_hash"]
        for event in part["events"]
        if event["worker_id"] == instance
        for block in event["event"]["data"]["stored"]["blocks"]
    }


def matched(plane, count):
    status, answer = http("POST", plane.http + "/query", {"token_ids": prompt(count), "model_name": "m"})
    assert status == 200, answer
    return answer["scores"].get("7", {}).get("0", 0) // BLOCK


def trust(plane):
    """The level, and the worst reason."""
    status = plane.status("instance-7")
    return status["trust"], status["reason"]


def metric(plane, name):
    page = plane.get("/metrics")[1]
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name) and not line.startswith("#"))


def in_touch(e, *planes):
    """Publishes what is no part of anything until every plane hears it: without a replay socket earlier batches are lost."""

    def heard():
        e.publish(V.stored([1000], None, [9] * BLOCK, BLOCK), V.removed([1000]))
        return all(one.status("instance-7")["last_sequence"] is not None for one in planes)

    eventually(heard, "the engine is heard")


def joins(e, one):
    """A plane begins to hear an engine."""
    register(one, e)
    one.wait_live("instance-7")
    in_touch(e, one)
    return one


def half_heard(engine, plane, has_replay=False, buffer_steps=5):
    """An engine, and a plane that has heard 50 of its blocks. Nobody can ask the engine for them."""
    e = engine(has_replay=has_replay, buffer_steps=buffer_steps)
    first = joins(e, plane())
    for number in range(50):
        e.publish(*stores([number]))
    first.wait_at(e.next_sequence - 1, "instance-7")
    return e, first


def second_half(e):
    for number in range(50, 100):
        e.publish(*stores([number]))


@pytest.mark.parametrize("has_replay", [False, True])
def test_half_of_the_blocks_before_and_half_after(engine, plane, has_replay):
    """NVIDIA's sync scenario between two kvplanes: 100 of 100, `lower`, and nothing that is gone."""
    e, first = half_heard(engine, plane, has_replay)
    second = joins(e, plane(args=["--peers", first.http]))
    second_half(e)
    e.publish(V.removed([100]), V.stored([100], 99, tokens(99), BLOCK))
    eventually(lambda: blocks(second) == set(range(1, 101)), lambda: f"{len(blocks(second))} of 100: {second.log()[-2000:]}", 30)
    assert matched(second, 100) == 100
    assert trust(second) == ("lower", "history")
    assert metric(second, "kvplane_peer_recoveries_total") == 1
    second.logged("blocks recovered from a peer")
    # What came from the peer goes as everything else does.
    e.publish(V.removed([100, 99, 1]))
    for one in (first, second):
        one.wait_at(e.next_sequence - 1, "instance-7")
        assert matched(one, 100) == 0
    e.publish(*stores([0]))
    second.wait_at(e.next_sequence - 1, "instance-7")
    eventually(lambda: matched(second, 100) == 98, lambda: matched(second, 100))


def test_a_peer_that_is_registered_later(engine, plane):
    e, first = half_heard(engine, plane)
    second = joins(e, plane())
    assert matched(second, 50) == 0
    assert http("POST", second.http + "/register_peer", {"url": first.http})[0] == 201
    assert http("GET", second.http + "/peers")[1] == [first.http]
    eventually(lambda: matched(second, 50) == 50, lambda: f"{matched(second, 50)}: {second.log()[-2000:]}", 30)


@needs_dynamo
def test_kvplane_recovers_from_dynamos_indexer(engine, plane, dynamo_indexer):
    """Dynamo's dump has no position: the blocks are taken, and the stream says that they are not proven."""
    e = engine(has_replay=False)
    theirs = dynamo_indexer()
    theirs.register(7, e.events)

    def heard():
        e.publish(V.stored([1000], None, [9] * BLOCK, BLOCK))
        return (7, 0, 1000) in theirs.blocks()

    eventually(heard, "Dynamo's indexer hears")
    e.publish(V.removed([1000]))
    for number in range(50):
        e.publish(*stores([number]))
    theirs.eventually(lambda: theirs.query(prompt(50)).get((7, 0)) == 50 * BLOCK, "Dynamo's indexer has read all")
    second = joins(e, plane(args=["--peers", theirs.http]))
    second_half(e)
    eventually(lambda: matched(second, 100) == 100, lambda: f"{matched(second, 100)} of 100: {second.log()[-2000:]}", 30)
    assert trust(second) == ("unverified", "peer_dump")
    theirs.eventually(lambda: theirs.query(prompt(100)).get((7, 0)) == 100 * BLOCK, "both say the same")


@needs_dynamo
def test_dynamos_indexer_recovers_from_a_kvplane_that_recovered(engine, plane, dynamo_indexer):
    """Blocks without tokens are dumped on: hashes are all that a dump has."""
    e, first = half_heard(engine, plane)
    second = joins(e, plane(args=["--peers", first.http]))
    second_half(e)
    eventually(lambda: len(blocks(second)) == 100, lambda: len(blocks(second)), 30)
    theirs = dynamo_indexer(peers=[second.http])
    theirs.eventually(lambda: theirs.query(prompt(100)).get((7, 0)) == 100 * BLOCK, "the dump of its peer")


class Answering:
    """An HTTP server that answers `/dump` as a test wants."""

    def __init__(self, answer):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers.get("authorization")))
                status, body = answer(self)
                if status:
                    self.send_response(status)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def answering():
    made = []

    def make(answer):
        made.append(Answering(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_peers_that_fail_are_counted_and_the_next_one_is_asked(engine, plane, answering):
    """Refused, not JSON, too large, broken off: hearing goes on, and the peer that knows the worker gives its blocks."""
    e, first = half_heard(engine, plane)
    broken = [
        answering(lambda _: (500, b"no")),
        answering(lambda _: (200, b"<html>")),
        answering(lambda _: (200, b"[" + b" " * (2 << 20))),
        answering(lambda _: (200, json.dumps({"m:default": {"error": "no"}, "other:default": {"block_size": 4, "events": []}}).encode())),
    ]
    peers = ["http://127.0.0.1:9", *(one.url for one in broken), first.http]
    second = joins(e, plane(args=["--peers", ",".join(peers), "--set", "indexer.peers_max_dump=1MiB"]))
    second_half(e)
    eventually(lambda: matched(second, 100) == 100, lambda: f"{matched(second, 100)}: {second.log()[-2000:]}", 30)
    assert metric(second, "kvplane_peer_dump_failures_total") >= 4
    second.logged("no dump from a peer")
    assert all(one.asked[0][0] == "/dump" for one in broken)


def test_an_old_dump_and_one_of_another_life_are_not_taken(engine, plane, answering):
    """A peer that stopped hearing, and one that names a batch of the same number that never was."""
    e, first = half_heard(engine, plane)
    old = first.get("/dump")[1]
    other = json.loads(json.dumps(old))
    lying = answering(lambda _: (200, json.dumps(other).encode()))
    stale = answering(lambda _: (200, json.dumps(old).encode()))
    second = joins(e, plane(args=["--peers", f"{stale.url},{lying.url}"]))
    stream = other["m:default"]["streams"][0]
    stream["sequence"] = e.publish(*stores([51]))
    eventually(lambda: metric(second, "kvplane_peer_dumps_unfit_total") >= 4, lambda: second.log()[-2000:], 30)
    assert (matched(second, 50), metric(second, "kvplane_peer_recoveries_total")) == (0, 0)


def test_peers_behind_tls_and_a_token(engine, plane, tmp_path, answering):
    """The configured peer is shown the token, over TLS; one that was registered is not."""
    folder, token = certificates(tmp_path), tmp_path / "token"
    token.write_text("secret\n")
    e = engine(has_replay=False, synchronised=True)
    keys = ["--set", "auth.token.0.name=a", "--set", "auth.token.0.role=admin", "--set", f"auth.token.0.file={token}"]
    tls = ["--set", f"listen.tls.cert={folder / 'cert.pem'}", "--set", f"listen.tls.key={folder / 'key.pem'}"]
    first = plane(e, args=[*keys, *tls], model="m", block_size=BLOCK, worker_id=7)
    eventually(e.has_subscriber, "the first plane listens")
    for number in range(50):
        e.publish(*stores([number]))
    stranger = answering(lambda _: (200, b"{}"))
    peer = first.http.replace("http://127.0.0.1", "https://localhost")
    trusting = ["--set", f"indexer.peers_ca={folder / 'ca.pem'}", "--set", f"indexer.peers_token_file={token}"]
    second = plane(args=["--peers", peer, *trusting])
    assert http("POST", second.http + "/register_peer", {"url": stranger.url})[0] == 201
    assert http("POST", second.http + "/deregister_peer", {"url": stranger.url})[0] == 200
    refusing = plane(args=["--peers", peer])
    assert http("POST", refusing.http + "/register_peer", {"url": stranger.url})[0] == 201
    for one in (second, refusing):
        register(one, e)
        one.wait_live("instance-7")
    in_touch(e, second, refusing)
    second_half(e)
    eventually(lambda: matched(second, 100) == 100, lambda: f"{matched(second, 100)}: {second.log()[-2000:]}", 30)
    (failed, *_) = refusing.logged("no dump from a peer")
    assert "TLS" in failed["error"], failed
    eventually(lambda: stranger.asked, "the registered peer is asked")
    assert {authorization for _, authorization in stranger.asked} == {None}
    assert matched(refusing, 50) == 0
