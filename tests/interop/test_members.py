"""Engines that come and go while kvplane runs: by calls, by registration, by the configuration file."""

import json
import signal

import pytest

from conftest import flag
from harness.plane import http, run
from harness.wait import eventually
from harness.wire import NEWEST

V = NEWEST


def root(hash):
    return V.stored([hash], None, [hash] * 4, 4)


def post(plane, path, **body):
    return http("POST", plane.http + path, body)


def ids(plane):
    return [engine["id"] for engine in plane.get("/v1/engines")[1]["engines"]]


# --- calls and the command line ------------------------------------------------------------------------------


def test_an_engine_is_added_and_removed_by_calls(engine, plane):
    one, two = engine(before=[[root(1)]]), engine(before=[[root(2)], [root(3)]])
    p = plane(one)
    p.wait_at(0, "e0")
    epoch = p.status("e0")["epoch"]
    status, added = post(p, "/v1/engines", id="two", kind="vllm", events=two.events, replay=two.replay, model="m")
    assert status == 201 and added["added_by"] == "api" and added["ranks"] == [
        {"rank": 0, "events": two.events, "replay": two.replay}
    ]
    assert p.wait_at(1, "two")["trust"] == "exact" and p.held("two") == {2, 3}
    status, refused = post(p, "/v1/engines", id="two", kind="vllm", events=two.events)
    assert status == 409 and refused["error"]["code"] == "conflict" and not refused["error"]["retry"]
    status, refused = post(p, "/v1/engines", id="x", kind="vllm", events=two.events, colour="red")
    assert status == 400 and "colour" in refused["error"]["message"]
    assert http("DELETE", p.http + "/v1/engines/two") == (204, "")
    assert ids(p) == ["e0"] and 'engine="two"' not in p.get("/metrics")[1]
    assert p.status("e0")["epoch"] == epoch


def test_the_command_line_lists_adds_and_removes(binary, engine, plane):
    one, two = engine(), engine(before=[[root(1)]])
    p = plane(one, model="llama")

    def engines(*words):
        return run(binary, "engines", "--server", p.http, *words)

    added = engines("add", "two", "--engine", f"vllm={two.events},replay={two.replay}")
    assert (added.returncode, added.stdout) == (0, "added two\n"), added.stderr
    p.wait_at(0, "two")
    lines = engines().stdout.splitlines()
    assert lines[0].split() == ["ENGINE", "KIND", "MODEL", "RANK", "EVENTS", "REPLAY", "ADDED", "BY"]
    assert lines[1].split() == ["e0", "vllm", "llama", "0", one.events, one.replay, "config"]
    assert lines[2].split() == ["two", "vllm", "-", "0", two.events, two.replay, "api"]
    listed = json.loads(engines("list", "-o", "json").stdout)
    assert [engine["id"] for engine in listed["engines"]] == ["e0", "two"]
    removed = engines("remove", "two")
    assert (removed.returncode, removed.stdout) == (0, "removed two\n")
    for words, expected in [
        (["remove", "two"], "no engine"),
        (["add", "e0", "--engine", f"vllm={two.events}"], "used twice"),
        (["add", "two", "--engine", "vllm=here"], "not an address"),
        (["add", "two", "--engine", "vllm=tcp://a:1,colour=red"], "colour"),
        (["add", "two", "--engine", "vllm"], "KIND=EVENTS"),
    ]:
        done = engines(*words)
        assert done.returncode == 2 and expected in done.stderr and len(done.stderr.splitlines()) == 1, done
    nobody = run(binary, "engines", "--server", "http://127.0.0.1:9")
    assert nobody.returncode == 1 and "kvplane serve" in nobody.stderr


def test_a_plane_may_begin_empty(plane):
    p = plane()
    assert p.logged("no engine is configured: add one with `kvplane engines add`, or let engines register")
    assert p.get("/readyz")[0] == 200 and ids(p) == []


# --- registration, as Dynamo's indexer has it ----------------------------------------------------------------


def test_instances_register_and_show_up_everywhere(engine, plane):
    zero, three = engine(before=[[root(1)]]), engine(before=[[root(2)]])
    p = plane()
    first = dict(instance_id=7, model_name="llama", block_size=4, endpoint=three.events, dp_rank=3)
    assert post(p, "/register", **first, replay_endpoint=three.replay, tenant_id="t", anything=[1]) == (
        201, {"status": "ok"},
    )
    second = {**first, "endpoint": zero.events, "dp_rank": 0, "replay_endpoint": zero.replay}
    assert post(p, "/register", **second)[0] == 201
    for wrong, code in [
        ({}, 409),
        ({"dp_rank": 1, "model_name": "other"}, 409),
        ({"dp_rank": 1, "block_size": 16}, 409),
        ({"dp_rank": 1, "endpoint": "nowhere"}, 400),
    ]:
        status, body = post(p, "/register", **{**first, **wrong})
        assert status == code and isinstance(body["error"], str), (wrong, status, body)
    assert post(p, "/register", instance_id=7)[0] in (400, 422)

    def active():
        (worker,) = p.get("/workers?model_name=llama")[1]
        return worker if worker["status"] == "active" else None

    worker = eventually(active, "both ranks are heard")
    assert worker == {
        "instance_id": 7, "source": "zmq", "status": "active", "model_name": "llama", "routing_group": "default",
        "block_size": 4, "endpoints": {"0": zero.events, "3": three.events},
        "listeners": {
            "0": {"endpoint": zero.events, "status": "active"}, "3": {"endpoint": three.events, "status": "active"},
        },
    }
    (status,) = p.get("/v1/status")[1]["engines"]
    assert status["id"] == "instance-7" and [rank["rank"] for rank in status["ranks"]] == [0, 3]
    assert all(rank["trust"] == "exact" for rank in status["ranks"])
    assert 'engine="instance-7",rank="3"' in p.get("/metrics")[1]
    answer = p.recover(engine="instance-7", rank=3)[1]["TreeDump"]
    assert [event["worker_id"] for event in answer["events"]] == [7]
    prompt = dict(token_ids=[2] * 4)
    assert post(p, "/query", model_name="llama", **prompt)[1]["scores"] == {"7": {"3": 4}}
    assert post(p, "/v1/query", model="llama", **prompt)[1]["best"] == [{"engine": "instance-7", "rank": 3}]
    assert p.get("/workers?routing_group=other")[1] == []
    assert p.get("/health")[0] == 200

    assert post(p, "/unregister", instance_id=7, model_name="other")[0] == 404
    rank = dict(instance_id=7, model_name="llama", routing_group="default", dp_rank=3)
    assert post(p, "/unregister", **rank) == (200, {"status": "ok"})
    assert post(p, "/unregister", **rank)[0] == 404
    (status,) = p.get("/v1/status")[1]["engines"]
    assert [rank["rank"] for rank in status["ranks"]] == [0]
    answer = post(p, "/v1/query", model="llama", all=True, **prompt)[1]
    assert [(found["rank"], found["blocks"]) for found in answer["matches"]] == [(0, 0)]
    assert post(p, "/unregister", instance_id=7, model_name="llama")[0] == 200
    assert p.get("/workers")[1] == [] and ids(p) == []
    assert post(p, "/query", model_name="llama", **prompt)[0] == 404


def test_peers_are_a_list(plane):
    p = plane()
    for url in ("http://b:1", "http://a:1", "http://b:1"):
        assert post(p, "/register_peer", url=url) == (201, {"status": "ok"})
    assert p.get("/peers") == (200, ["http://a:1", "http://b:1"])
    assert post(p, "/deregister_peer", url="http://a:1")[0] == 200
    assert post(p, "/deregister_peer", url="http://a:1")[0] == 404


# --- SIGHUP --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """A configuration file for engines by name."""
    path = tmp_path / "kvplane.toml"

    def write(more="", **engines):
        text = more
        for id, one in engines.items():
            text += f'[[engine]]\nid = "{id}"\nkind = "vllm"\nevents = "{one.events}"\nreplay = "{one.replay}"\n'
        path.write_text(text)
        return path

    return write


def reloaded(plane, times):
    """What the last of so many reloads did."""
    record = plane.logged("configuration reloaded", times)[-1]
    return {key: record[key] for key in ("added", "removed", "changed", "unchanged", "failed")}


def test_sighup_applies_what_differs(engine, plane, file):
    same, old, new, called = (engine(before=[[root(at)]]) for at in range(1, 5))
    p = plane(args=["--config", file(same=same, moved=old, gone=old)])
    post(p, "/v1/engines", id="called", kind="vllm", events=called.events, replay=called.replay)
    p.wait_at(0, "same")
    before = p.status("same")
    file(more='[journal]\nmax_batches = 77\n', same=same, moved=new, fresh=new)
    p.process.send_signal(signal.SIGHUP)
    assert reloaded(p, 1) == {"added": 1, "removed": 1, "changed": 1, "unchanged": 1, "failed": 0}
    assert sorted(ids(p)) == ["called", "fresh", "moved", "same"]
    assert p.logged("changed in the configuration, and needs a restart")[0]["keys"] == "journal.max_batches"
    p.wait_at(0, "moved")
    assert p.held("moved") == {3}
    last = same.publish(root(9))
    after = p.wait_at(last, "same")
    assert (after["epoch"], after["counters"]["gaps"]) == (before["epoch"], 0)
    # An engine that was removed by a call is configured still.
    assert http("DELETE", p.http + "/v1/engines/fresh")[0] == 204
    p.process.send_signal(signal.SIGHUP)
    assert reloaded(p, 2) == {"added": 1, "removed": 0, "changed": 0, "unchanged": 2, "failed": 0}
    assert p.stop() == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[engine]]\nid = 'x'\nkind = 'vllm'\nevents = 'tcp://a:1'\ncolour = 1\n", ["kvplane.toml:5:", "colour"]),
        ("[[engine]]\nid = 'x'\nkind = 'vllm'\nevents = 'tcp://a:1'\nranks = 0\n", ["engine[0]", "ranks"]),
        ("[[engine", ["kvplane.toml:1:"]),
        ("", ["no engine"]),
    ],
)
def test_sighup_with_a_bad_file_changes_nothing(engine, plane, file, text, words):
    one = engine(before=[[root(1)]])
    path = file(one=one)
    p = plane(args=["--config", path])
    before = p.wait_at(0, "one")
    path.write_text(text)
    p.process.send_signal(signal.SIGHUP)
    (record,) = p.logged("configuration not reloaded: nothing has changed")
    assert all(word in record["error"] for word in words), record
    after = p.wait_at(one.publish(root(2)), "one")
    assert after["epoch"] == before["epoch"] and ids(p) == ["one"]


def test_sighup_without_a_file_reads_the_flags_again(engine, plane):
    one = engine()
    p = plane(args=["--engine", flag(one)])
    p.process.send_signal(signal.SIGHUP)
    assert reloaded(p, 1) == {"added": 0, "removed": 0, "changed": 0, "unchanged": 1, "failed": 0}


def test_an_instance_may_name_its_kind(plane):
    """Dynamo's clients name none, which means vLLM."""
    p = plane()
    instance = {"endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 16}
    kinds = {1: None, 2: "vllm", 3: "sglang", 4: "tokenspeed"}
    for number, kind in kinds.items():
        named = {"kind": kind} if kind else {}
        assert http("POST", p.http + "/register", {**instance, "instance_id": number, **named})[0] == 201
    engines = http("GET", p.http + "/v1/engines")[1]["engines"]
    assert {one["worker_id"]: one["kind"] for one in engines} == {number: kind or "vllm" for number, kind in kinds.items()}
    for kind in ("llamacpp", "grpc", "kvplane"):
        status, answer = http("POST", p.http + "/register", {**instance, "instance_id": 5, "kind": kind})
        assert status == 400 and "kind" in answer["error"], answer
