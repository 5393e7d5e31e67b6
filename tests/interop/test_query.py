"""Who holds a prompt, asked from outside: HTTP, gRPC, the peers' routes and the command line."""

import json
import subprocess

import grpc
import pytest

from harness.captures import Capture
from harness.plane import clean_environment, http
from harness.wire import NEWEST

BLOCK = 32


def predict(engine, plane, capture):
    """Before every request of a recording: what the answer says, and what the engine then found. The misses, and how many were asked."""
    one = engine(NEWEST, topic=capture.topic)
    p = plane(one, model="m")
    p.wait_live()
    published, wrong, asked = 0, [], 0
    for earlier, request, cached in capture.truths():
        while published < earlier:
            one.publish_payload(capture.payloads[published])
            published += 1
        if published:
            p.wait_at(published - 1)
        prompt = request["prompt_token_ids"]
        question = {"model": "m", "token_ids": prompt, "cache_salt": request["cache_salt"], "all": True}
        status, answer = http("POST", f"{p.http}/v1/query", question)
        assert (status, answer["trust"], answer["not_credited"]) == (200, "exact", [])
        (match,) = answer["matches"]
        predicted = match["cached_tokens"]
        asked += 1
        if predicted != cached:
            wrong.append((request["step"], predicted, cached))
    return wrong, asked


def test_answers_predict_what_the_engine_then_did(engine, plane):
    """A recorded engine's own word: before every request, the answer says what it will find in its cache."""
    capture = Capture("vllm-0.32.0-oracle")
    wrong, asked = predict(engine, plane, capture)
    assert asked == 129
    # The engine had emptied its cache before this request, and said so only with the batch that followed it.
    assert wrong == [(130, 128, 0)]
    after_reset = [line["cause"] for line in capture.live if line["step"] == 130]
    assert after_reset == ["probe after reset"]


def test_answers_predict_what_a_hybrid_engine_then_did(engine, plane):
    """Two sliding windows beside full attention: an answer counts what all of them can go on from."""
    wrong, asked = predict(engine, plane, Capture("vllm-0.32.0-hybrid-oracle"))
    assert (wrong, asked) == ([], 58)


@pytest.fixture
def two(sim, plane):
    """Two simulated engines that hold the same 96 tokens, the second also 64 salted ones."""
    sims = [sim(), sim()]
    p = plane(*sims, model="m")
    prompt = list(range(100))
    for at, one in enumerate(sims):
        one.complete(prompt, max_tokens=1)
        if at:
            one.complete(prompt[:64], max_tokens=1, cache_salt="tenant")
        p.wait_at(one.state()[1] - 1, engine=f"e{at}")
    return p, prompt


def test_grpc_one_by_one_and_in_a_stream(two, stubs):
    p, prompt = two
    with grpc.insecure_channel(p.grpc) as channel:
        plane = stubs.PlaneStub(channel)
        answer = plane.Query(stubs.QueryRequest(model="m", token_ids=prompt), timeout=10)
        assert [(m.engine, m.blocks, m.tokens, m.tiers.device) for m in answer.matches] == [("e0", 6, 96, 96), ("e1", 6, 96, 96)]
        assert [(b.engine, b.rank) for b in answer.best] == [("e0", 0), ("e1", 0)]
        assert answer.trust == stubs.TRUST_LEVEL_EXACT
        salted = stubs.QueryRequest(id=2, model="m", token_ids=prompt, cache_salt="tenant")
        unknown = stubs.QueryRequest(id=3, model="x", token_ids=prompt)
        plain = stubs.QueryRequest(id=1, model="m", token_ids=prompt)
        batches = [stubs.QueryBatch(queries=[plain, salted]), stubs.QueryBatch(queries=[unknown])]
        first, second = plane.QueryStream(iter(batches), timeout=10)
        assert [result.id for result in first.results] == [1, 2]
        assert [(m.engine, m.tokens) for m in first.results[1].response.matches] == [("e1", 64)]
        counts = first.results[1].response.counts
        assert (counts.holders, counts.best, counts.empty, counts.not_credited) == (1, 1, 1, 0)
        answer = plane.Query(stubs.QueryRequest(model="m", token_ids=prompt, cache_salt="tenant", all=True), timeout=10)
        assert [(m.engine, m.tokens) for m in answer.matches] == [("e1", 64), ("e0", 0)]
        answer = plane.Query(stubs.QueryRequest(model="m", token_ids=prompt, limit=1), timeout=10)
        assert ([m.engine for m in answer.matches], answer.counts.holders) == (["e0"], 2)
        (refused,) = second.results
        assert (refused.id, refused.refusal.field, refused.refusal.code) == (3, "model", "invalid_argument")
        with pytest.raises(grpc.RpcError) as error:
            plane.Query(unknown, timeout=10)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "known models: m" in error.value.details()


def test_an_indexers_client(two):
    """The requests that a client of Dynamo's indexer makes."""
    p, prompt = two
    workers = {e["id"]: str(e["worker_id"]) for e in p.get("/v1/engines")[1]["engines"]}
    status, answer = http("POST", f"{p.http}/query", {"model_name": "m", "token_ids": prompt})
    assert status == 200
    assert answer["scores"] == {workers["e0"]: {"0": 96}, workers["e1"]: {"0": 96}}
    assert answer["instances"][workers["e0"]] == {"longest_matched": 96, "gpu": 96, "dp": {"0": 96}, "cpu": 96, "disk": 96}
    status, dump = p.get("/dump")
    assert (status, dump["m:default"]["block_size"]) == (200, 16)
    stored = [b for e in dump["m:default"]["events"] if e["worker_id"] == int(workers["e0"]) for b in e["event"]["data"]["stored"]["blocks"]]
    hashes = [b["tokens_hash"] - (1 << 64 if b["tokens_hash"] >> 63 else 0) for b in stored]
    status, answer = http("POST", f"{p.http}/query_by_hash", {"model_name": "m", "block_hashes": hashes})
    assert (status, answer["scores"]) == (200, {workers["e0"]: {"0": 96}, workers["e1"]: {"0": 96}})
    assert http("POST", f"{p.http}/query", {"model_name": "x", "token_ids": []})[0] == 404


def command(p, *words, given):
    return subprocess.run(
        [str(p.binary), "query", "--server", p.http, *words],
        input=given, capture_output=True, text=True, timeout=30, env=clean_environment(),
    )


def test_the_command_line(two, tmp_path):
    p, prompt = two
    done = command(p, "--model", "m", given=json.dumps(prompt))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["ENGINE", "RANK", "BLOCKS", "TOKENS", "CACHED", "DEVICE", "TRUST", "REASON"]
    cached = str(min(96, (len(prompt) - 1) // 16 * 16))
    assert lines[1].split() == ["e0", "0", "6", "96", cached, "96", "exact", "-"]
    assert lines[3] == "best: e0/0, e1/0; trust of the answer: exact"
    written = tmp_path / "prompt"
    written.write_text(" ".join(map(str, prompt)))
    done = command(p, "--model", "m", "--cache-salt", "tenant", "-o", "json", str(written), given="")
    assert [match["tokens"] for match in json.loads(done.stdout)["matches"]] == [64]
    done = command(p, "--model", "m", "--cache-salt", "tenant", str(written), given="")
    assert "not listed: 1 hold nothing" in done.stdout.splitlines()
    done = command(p, "--model", "m", "--cache-salt", "tenant", "--all", "-o", "json", str(written), given="")
    assert [match["tokens"] for match in json.loads(done.stdout)["matches"]] == [64, 0]
    for words, given, reason in [
        (["--model", "x"], "1 2", "model: \"x\" is not known; known models: m"),
        (["--model", "m"], "1 x", "number 1 is not a whole number"),
        (["--model", "m"], str(1 << 32), "number 0 is not a token id"),
        (["--model", "m", "--hashes"], "1", "--block-size"),
    ]:
        done = command(p, *words, given=given)
        assert done.returncode == 2 and reason in done.stderr, done
