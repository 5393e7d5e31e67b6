"""Engines that connect to us: one bound socket, engines told apart by topic."""

import socket

import pytest

from harness.plane import run
from harness.wait import eventually
from harness.wire import LAST_ARRAYS, NEWEST

V = NEWEST


def root(hash, version=V):
    return version.stored([hash], None, [hash] * 4, 4)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def address():
    return f"tcp://127.0.0.1:{free_port()}"


def flag(engine, id):
    replay = f",replay={engine.replay}" if engine.has_replay else ""
    return f"vllm=bind:{engine.events}{replay},topic={engine.topic.decode()},id={id}"


def connected(engine, address, topic, version=V, **options):
    options.setdefault("synchronised", True)
    return engine(version, events=address, connect=True, topic=topic, **options)


def test_two_engines_on_one_socket(engine, plane, address):
    a = connected(engine, address, "kv@a", before=[[root(1)]])
    b = connected(engine, address, "kv@b", LAST_ARRAYS, before=[[root(2, LAST_ARRAYS)]])
    p = plane(args=["--engine", flag(a, "a"), "--engine", flag(b, "b")])
    for each in (a, b):
        eventually(each.has_subscriber, "a subscription")
    last_a = a.publish(root(3))
    last_b = b.publish(root(4, LAST_ARRAYS))
    assert p.wait_at(last_a, "a")["trust"] == "exact"
    assert p.wait_at(last_b, "b")["trust"] == "exact"
    assert (p.held("a"), p.held("b")) == ({1, 3}, {2, 4})


def test_a_topic_that_begins_like_another(engine, plane, address):
    a = connected(engine, address, "kv@pod-1")
    b = connected(engine, address, "kv@pod-10")
    p = plane(args=["--engine", flag(a, "a"), "--engine", flag(b, "b")])
    for each in (a, b):
        eventually(each.has_subscriber, "a subscription")
    p.wait_at(a.publish(root(1)), "a")
    p.wait_at(b.publish(root(2)), "b")
    assert (p.held("a"), p.held("b")) == ({1}, {2})


def test_one_engine_restarts_and_the_other_does_not_notice(engine, plane, address):
    a = connected(engine, address, "kv@a")
    b = connected(engine, address, "kv@b")
    p = plane(args=["--engine", flag(a, "a"), "--engine", flag(b, "b")])
    for each in (a, b):
        eventually(each.has_subscriber, "a subscription")
    p.wait_at(a.publish(root(1)), "a")
    p.wait_at(b.publish(root(2)), "b")
    before = {id: p.status(id)["epoch"] for id in "ab"}
    a = engine.keep(a.restarted(before=[[root(10)], [root(11)]], synchronised=True))
    after = p.wait(lambda s: s["epoch"] > before["a"] and s["last_sequence"] == 1 and s["continuity"] == "live", engine="a")
    assert (after["trust"], p.held("a")) == ("exact", {10, 11})
    other = p.wait_live("b")
    assert (other["epoch"], other["trust"], p.held("b")) == (before["b"], "exact", {2})


def test_an_engine_that_goes_is_down_and_the_other_is_not(engine, plane, address):
    a = connected(engine, address, "kv@a")
    b = connected(engine, address, "kv@b")
    quick = ["--set", "follow.down_after=500ms", "--set", "follow.replay_idle=200ms"]
    p = plane(args=["--engine", flag(a, "a"), "--engine", flag(b, "b"), *quick])
    for each in (a, b):
        eventually(each.has_subscriber, "a subscription")
    p.wait_at(a.publish(root(1)), "a")
    p.wait_at(b.publish(root(2)), "b")
    a.kill()
    p.wait(lambda s: s["continuity"] == "down", "down", engine="a")
    assert "Error" in p.recover(engine="a")[1]
    status = p.wait_at(b.publish(root(3)), "b")
    assert (status["trust"], p.held("b")) == ("exact", {2, 3})


def test_messages_of_nobody(engine, plane, address):
    a = connected(engine, address, "kv@a")
    stranger = connected(engine, address, "other", synchronised=False)
    p = plane(args=["--engine", flag(a, "a")])
    eventually(a.has_subscriber, "a subscription")
    stranger.publish(root(66))
    last = a.publish(root(1))
    status = p.wait_at(last, "a")
    assert (status["trust"], p.held("a")) == ("exact", {1})


def test_one_topic_for_two_engines_is_a_mistake(binary, address):
    done = run(
        binary, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
        "--engine", f"vllm=bind:{address},id=a,topic=t", "--engine", f"vllm=bind:{address},id=b,topic=t", timeout=10,
    )
    assert "cannot be distinguished" in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.returncode == 2, done.stderr


def test_a_taken_bind_port_ends_the_start(binary, engine, address):
    port = int(address.rsplit(":", 1)[1])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        other = engine(synchronised=True)
        done = run(
            binary, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log", "warn",
            "--engine", f"vllm=bind:{address},id=a", "--engine", f"vllm={other.events},id=b", timeout=10,
        )
    assert done.returncode == 1
    assert str(port) in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not other.has_subscriber(), "an engine was contacted"
