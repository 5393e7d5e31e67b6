"""Operations on a served fleet of simulated engines, asked for from outside: every verdict, the shapes of answers, bad input, and a race of stores with flushes."""

import concurrent.futures
import json
import ssl
import threading
import urllib.error
import urllib.request

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2_grpc, tokenspeed_scheduler_pb2_grpc, vllm_engine_pb2_grpc

from harness.certificates import certificates
from harness.plane import clean_environment, free_ports, http
from harness.wait import eventually

PROMPT = list(range(100, 197))
WHOLE = 96  # tokens of it in whole blocks
# What SMG's gateway answers; kvplane adds to it.
SMG_KEYS = {
    "status", "message", "workers_flushed", "total_http_workers", "total_grpc_workers", "total_zmq_workers_skipped",
    "total_workers", "successful", "failed",
}
RANK_KEYS = {
    "engine", "rank", "model", "kind", "phase", "verdict", "why", "asked", "answer_s", "proof_s", "may_still_complete",
    "tiers_cleared", "tiers_remaining",
}


@pytest.fixture
def fleet(sim, plane):
    """A plane over simulators, each with a prompt in its cache that the plane knows of."""

    def make(*profiles, words=()):
        sims = [sim("--profile", profile, *words) for profile in profiles]
        args = []
        for at, one in enumerate(sims):
            args += ["--engine", f"{one.software}={one.events[0]},replay={one.replay[0]},id=e{at},model=sim,http={one.http}"]
        served = plane(args=args)
        for at, one in enumerate(sims):
            served.wait_live(f"e{at}")
            one.complete(PROMPT, 1)
            # What a publisher said before it was heard is in its ring.
            served.wait_at(one.state()[1] - 1, f"e{at}")
        return served, *sims

    return make


def flush(plane, **request):
    """Status, body, and the only rank's report."""
    status, body = http("POST", plane.http + "/flush_cache", {"proof_timeout_s": 5, **request})
    assert SMG_KEYS < body.keys(), body
    assert body["total_zmq_workers_skipped"] == 0
    for rank in body["ranks"]:
        assert RANK_KEYS <= rank.keys() and rank["why"] and rank["phase"] == "over", rank
    good = {"proven", "done"}
    verdicts = [rank["verdict"] for rank in body["ranks"]]
    expected = 200 if good.issuperset(verdicts) else 207 if good.intersection(verdicts) else 502
    assert status == expected, body
    assert len(body["successful"]) + len(body["failed"]) == body["total_workers"]
    assert body["workers_flushed"] == len(body["successful"])
    return status, body, body["ranks"][0]


def credited(plane, prompt=PROMPT):
    """Tokens of a prompt that each engine is said to hold."""
    status, answer = http("POST", f"{plane.http}/v1/query", {"model": "sim", "token_ids": prompt})
    assert status == 200, answer
    return {match["engine"]: match["tokens"] for match in answer["matches"]}


def test_a_flush_that_the_stream_shows_is_proven(fleet):
    for profile in ("sglang-0.5.22", "tokenspeed-0.1.1"):
        plane, one = fleet(profile)
        assert credited(plane)["e0"] == WHOLE
        status, body, rank = flush(plane)
        assert (status, body["status"], rank["verdict"]) == (200, "success", "proven"), rank
        assert (rank["engine"], rank["rank"], rank["kind"], rank["asked"]) == ("e0", 0, one.software, "POST /flush_cache")
        assert "device" in rank["tiers_cleared"] and rank["tiers_remaining"] == []
        assert (body["successful"], body["failed"], body["total_http_workers"]) == (["e0"], [], 1)
        assert one.state()[0] == {} and plane.held() == set()
        assert credited(plane).get("e0", 0) == 0
        assert plane.status()["trust"] == "exact"


def test_an_idle_vllm_shows_it_when_it_is_nudged(fleet):
    plane, one = fleet("vllm-0.32")
    status, _, rank = flush(plane, nudge=True)
    assert (status, rank["verdict"]) == (200, "proven"), rank
    assert [line for line in one.truth()["asked"] if "completions" in line][1:] == ["POST /v1/completions"], "one token, once"
    assert credited(plane).get("e0", 0) == 0


def test_a_success_that_nothing_confirms_is_no_success(fleet):
    """An idle vLLM says nothing of its reset until its next step: not credited, not proven, and right again after that step."""
    plane, one = fleet("vllm-0.32")
    status, body, rank = flush(plane, proof_timeout_s=0.3)
    assert (status, body["status"], rank["verdict"]) == (502, "error", "timeout"), rank
    assert body["failed"][0]["worker"] == "e0" and body["failed"][0]["error"]
    assert credited(plane).get("e0", 0) == 0
    assert (plane.status()["trust"], plane.status()["reason"]) == ("lower", "unproven_flush")
    one.complete(PROMPT, 1)
    plane.wait_at(one.state()[1] - 1)
    plane.wait(lambda status: status["trust"] == "exact", "exact again")
    assert credited(plane)["e0"] == WHOLE


def test_an_engine_that_lies_is_not_believed(fleet):
    plane, one = fleet("sglang-0.5.22")
    one.operations(no_effect=True)
    for _ in range(2):  # that nothing is known any more is no proof
        status, _, rank = flush(plane, proof_timeout_s=0.3)
        assert (status, rank["verdict"]) == (502, "timeout"), rank
        assert one.state()[0] != {} and plane.held() == set()
    one.operations(clear="lost")
    status, _, rank = flush(plane, proof_timeout_s=0.3)
    assert (status, rank["verdict"]) == (502, "timeout"), "it did, and nobody said so"
    assert one.state()[0] == {} and credited(plane).get("e0", 0) == 0
    one.operations()
    assert flush(plane)[2]["verdict"] == "proven"
    assert plane.status()["trust"] == "exact", "a clear settles everything"


def test_an_answer_that_proves_nothing_is_unknown(fleet):
    plane, one = fleet("vllm-0.24")
    one.operations(no_effect=True)
    status, _, rank = flush(plane, proof_timeout_s=0.3)
    assert (status, rank["verdict"]) == (502, "unknown"), rank
    one.operations(clear="early")
    assert flush(plane)[2]["verdict"] == "proven", "the stream tells what the answer does not"


def test_a_busy_engine_refuses_or_is_waited_for(fleet):
    for profile in ("vllm-0.32", "sglang-0.5.22", "tokenspeed-0.1.1"):
        plane, one = fleet(profile)
        one.operations(busy=True)
        status, _, rank = flush(plane)
        assert (status, rank["verdict"]) == (502, "refused"), rank
        assert credited(plane)["e0"] == WHOLE, "nothing was flushed, and nothing is withheld"
        one.operations(busy_ms=400, clear="early")
        assert flush(plane, timeout_s=30)[2]["verdict"] == "proven"


def test_engines_that_cannot_be_asked(fleet):
    plane, one = fleet("trtllm-zmq")
    status, _, rank = flush(plane)
    assert (status, rank["verdict"], rank["asked"]) == (502, "unsupported", ""), rank
    assert not any("flush" in line or "reset" in line for line in one.truth()["asked"])
    plane, _ = fleet("vllm-0.32", words=["--without", "dev-mode"])
    status, _, rank = flush(plane)
    assert (status, rank["verdict"]) == (502, "unsupported") and "VLLM_SERVER_DEV_MODE" in rank["why"], rank
    assert credited(plane)["e0"] == WHOLE


def test_engines_that_fail_or_do_not_answer(fleet):
    plane, one = fleet("sglang-0.5.22")
    one.operations(answer="error", verbs=["flush"])
    status, _, rank = flush(plane, proof_timeout_s=0.3)
    assert (status, rank["verdict"], rank["may_still_complete"]) == (502, "failed", True), rank
    one.operations(answer="hang", verbs=["flush"])
    status, _, rank = flush(plane, deadline_s=0.5, proof_timeout_s=0.3)
    assert (status, rank["verdict"], rank["may_still_complete"]) == (502, "timeout", True), rank
    # It is done, and its answer never comes: the stream has it.
    for answer in ("late", "broken"):
        one.operations()
        one.complete(PROMPT, 1)
        plane.wait_at(one.state()[1] - 1)
        one.operations(answer=answer, verbs=["flush"])
        assert flush(plane, deadline_s=2)[2]["verdict"] == "proven", answer


def test_partly(fleet):
    plane, good, bad = fleet("sglang-0.5.22", "sglang-0.5.22")
    bad.operations(busy=True)
    status, body, _ = flush(plane)
    assert (status, body["status"], body["workers_flushed"], body["total_workers"]) == (207, "partial", 1, 2)
    assert [rank["verdict"] for rank in body["ranks"]] == ["proven", "refused"]
    assert body["successful"] == ["e0"] and body["failed"][0]["worker"] == "e1"
    assert (good.state()[0] == {}, bad.state()[0] == {}) == (True, False)
    # Only those that were meant.
    assert flush(plane, engine="e0")[0] == 200
    assert flush(plane, kind=["sglang"], engine=["e1"])[0] == 502


def test_half_of_the_ranks(sim, plane):
    one = sim("--profile", "sglang-0.5.22", ranks=4)
    served = plane(one, ranks=4, model="sim", http=one.http)
    for rank in range(4):
        served.wait_live(rank=rank)
        one.complete(PROMPT, 1, rank=rank)
        served.wait_at(one.state(rank)[1] - 1, rank=rank)
    one.operations(busy=True, ranks=[1, 3])
    status, body, _ = flush(served, proof_timeout_s=1)
    assert status == 207
    assert [rank["verdict"] for rank in body["ranks"]] == ["proven", "unknown", "proven", "unknown"]
    assert one.truth()["asked"].count("POST /flush_cache") == 1, "one server, one question"


def test_a_host_tier_that_keeps_serving(fleet):
    plane, one = fleet("vllm-0.32", words=["--host-blocks", 512, "--host-events", "self-describing"])
    one.operations(clear="early")
    status, _, rank = flush(plane)
    assert (status, rank["verdict"], rank["tiers_cleared"]) == (502, "unknown", ["device"]), rank
    assert [left["tier"] for left in rank["tiers_remaining"]] == ["host"] and "host" in rank["why"]


def test_recordings_info_and_loads(fleet):
    plane, vllm, sglang = fleet("vllm-0.32", "sglang-0.5.22")
    status, body = http("POST", plane.http + "/start_profile", {"num_steps": 3})
    assert (status, [rank["verdict"] for rank in body["ranks"]]) == (200, ["done", "done"]), body
    ids = {rank["profile_id"] for rank in body["ranks"]}
    told = [one.truth()["profiles"][0]["profile_prefix"] for one in (vllm, sglang)]
    assert len(ids) == 2 and ids == set(told), "no two recordings share an id"
    assert vllm.truth()["profiles"][0]["max_iterations"] == sglang.truth()["profiles"][0]["num_steps"] == 3
    # One is under way: SGLang's server answers with an error, vLLM's lets it go on.
    status, body = http("POST", plane.http + "/start_profile")
    assert (status, [rank["verdict"] for rank in body["ranks"]]) == (207, ["done", "failed"]), body
    assert http("POST", plane.http + "/stop_profile")[0] == 200
    assert not vllm.truth()["profiling"] and not sglang.truth()["profiling"]
    status, body = http("POST", plane.http + "/start_profile", {"activities": ["GPU"], "engine": "e0"})
    assert (status, body["ranks"][0]["verdict"]) == (502, "unsupported") and "activities" in body["ranks"][0]["why"]
    status, info = http("GET", plane.http + "/server_info")
    assert status == 200
    assert info["ranks"][0]["detail"]["vllm_config"]["cache_config"]["block_size"] == 16
    assert info["ranks"][1]["detail"]["page_size"] == 16
    status, loads = http("GET", plane.http + "/get_loads")
    assert status == 200 and loads["ranks"][0]["detail"] == {"server_load": 0}
    assert loads["ranks"][1]["detail"]["loads"][0]["num_running_reqs"] == 0


def test_an_engine_that_wants_a_key(sim, plane, tmp_path):
    one = sim("--profile", "sglang-0.5.22", "--api-key", "engines-secret-1")
    config = """
        [[engine]]
        id = "e0"
        kind = "sglang"
        model = "sim"
        events = "{0.events[0]}"
        replay = "{0.replay[0]}"
        http = "{0.http}"
    """.format(one)
    (tmp_path / "without.toml").write_text(config)
    served = plane(args=["--config", tmp_path / "without.toml"])
    served.wait_live()
    status, _, rank = flush(served)
    assert (status, rank["verdict"]) == (502, "failed") and "key" in rank["why"], rank
    (tmp_path / "key").write_text("engines-secret-1\n")
    (tmp_path / "with.toml").write_text(config + f"""api_key_file = "{tmp_path}/key"\n""")
    served = plane(args=["--config", tmp_path / "with.toml"])
    served.wait_live()
    assert flush(served)[2]["verdict"] == "proven"
    assert "secret" not in served.log()


BAD = [
    ({"timeout_s": -1}, "timeout_s"), ({"timeout_s": "nan"}, "timeout_s"), ({"timeout_s": "soon"}, "timeout_s"),
    ({"proof_timeout_s": -0.1}, "proof_timeout"), ({"deadline_s": 0}, "deadline"), ({"nudge": "perhaps"}, "nudge"),
    ({"tiemout_s": 1}, "tiemout_s"), ({"engine": "e9"}, "e9"), ({"kind": "mlxx"}, "mlxx"),
]


def test_bad_input_reaches_no_engine(fleet):
    plane, one = fleet("sglang-0.5.22")
    before = one.truth()["asked"]
    for request, named in BAD:
        status, body = http("POST", plane.http + "/flush_cache", request)
        assert (status, named in json.dumps(body)) == (400, True), (request, body)
    status, body = http("POST", plane.http + "/flush_cache?timeout=inf")
    assert status == 400, body
    for nobody in ({"model": "other"}, {"kind": "vllm"}):
        assert http("POST", plane.http + "/flush_cache", nobody)[0] == 404, nobody
    assert http("GET", plane.http + "/flush_cache")[0] == 405
    status, body = http("POST", plane.http + "/flush_cache", {"dry_run": True})
    assert (status, body["plan"]["ranks"][0]["call"]) == (200, "POST /flush_cache"), body
    assert one.truth()["asked"] == before
    assert credited(plane)["e0"] == WHOLE


@pytest.mark.parametrize("profile", ["vllm-0.32", "sglang-0.5.22", "tokenspeed-0.1.1"])
def test_stores_raced_with_flushes(fleet, profile):
    """From the answer on nothing is credited that was flushed, and nothing is lost that came after."""
    plane, one = fleet(profile, words=["--blocks", 4096])
    ended = threading.Event()

    def prompt(number):
        return [number * 1000 + token for token in range(97)]

    def requests():
        number = 0
        while not ended.is_set():
            number = number % 20 + 1
            one.complete(prompt(number), 1)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [pool.submit(requests) for _ in range(2)]
        try:
            for round in range(8):
                old, fresh = prompt(1000 + round), prompt(2000 + round)
                one.complete(old, 1)
                eventually(lambda: credited(plane, old).get("e0") == WHOLE, "the old prompt")
                _, _, rank = flush(plane, timeout_s=30)
                assert rank["verdict"] == "proven", rank
                assert credited(plane, old).get("e0", 0) == 0, "a phantom"
                one.complete(fresh, 1)
                eventually(lambda: credited(plane, fresh).get("e0") == WHOLE, "the fresh prompt")
        finally:
            ended.set()
        for one_of_them in running:
            one_of_them.result(timeout=30)
    truth, following = one.state()
    status = plane.wait_at(following - 1)
    assert (status["trust"], {hash: n for (_, _, hash), n in plane.copies().items()}) == ("exact", truth)
    assert status["counters"]["restarts"] == 0, "a flush begins no life"


def test_over_kvplanes_own_service(fleet, generated):
    pb = generated("kvplane/v1/admin")
    plane, one = fleet("sglang-0.5.22")
    with grpc.insecure_channel(plane.grpc) as channel:
        admin = pb.AdminStub(channel)
        told = list(admin.Flush(pb.FlushRequest(proof_timeout_s=5)))
        assert [progress.WhichOneof("item") for progress in told][:: len(told) - 1] == ["plan", "summary"]
        assert (told[0].plan.verb, told[0].plan.backends, len(told[0].plan.ranks)) == ("flush", 1, 1)
        (last,) = [p.rank for p in told if p.WhichOneof("item") == "rank" and p.rank.phase == pb.PHASE_OVER]
        assert last.verdict == pb.VERDICT_PROVEN and "device" in last.tiers_cleared
        assert (told[-1].summary.outcome, dict(told[-1].summary.verdicts)) == (pb.OUTCOME_ALL, {"proven": 1})
        assert one.state()[0] == {}
        for request, code in [
            (pb.FlushRequest(timeout_s=-1), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.FlushRequest(timeout_s=float("nan")), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.FlushRequest(operation={"selection": {"models": ["other"]}}), grpc.StatusCode.NOT_FOUND),
        ]:
            with pytest.raises(grpc.RpcError) as error:
                list(admin.Flush(request))
            assert error.value.code() == code, error.value
        for call in (admin.Info, admin.Loads, admin.Health):
            told = list(call(pb.OperationRequest()))
            assert told[-1].summary.outcome == pb.OUTCOME_ALL, told


@pytest.fixture
def fronted(sim, plane):
    """A plane with a front before a simulator, which has HTTP alone or gRPC too; and a channel to the front."""
    channels = []

    def make(profile, *, has_grpc):
        one = sim("--profile", profile, *(["--grpc", "127.0.0.1:0"] if has_grpc else []))
        (port,) = free_ports(1)
        keys = {"id": "e0", "model": "sim", "replay": one.replay[0], "http": one.http, "front": f"127.0.0.1:{port}"}
        if has_grpc:
            keys["grpc"] = f"http://{one.grpc}"
        words = "".join(f",{key}={value}" for key, value in keys.items())
        served = plane(args=["--engine", f"{one.software}={one.events[0]}{words}"])
        served.wait_live()
        one.complete(PROMPT, 1)
        served.wait_at(one.state()[1] - 1)
        channels.append(grpc.insecure_channel(keys["front"]))
        return served, one, channels[-1]

    yield make
    for channel in channels:
        channel.close()


STUBS = {
    "vllm": vllm_engine_pb2_grpc.VllmEngineStub,
    "sglang": sglang_scheduler_pb2_grpc.SglangSchedulerStub,
    "tokenspeed": tokenspeed_scheduler_pb2_grpc.TokenSpeedSchedulerStub,
}


@pytest.mark.parametrize("has_grpc", [False, True])
@pytest.mark.parametrize("profile", ["vllm-0.32", "sglang-0.5.22", "tokenspeed-0.1.1"])
def test_smgs_client_flushes_and_profiles_through_a_front(fronted, profile, has_grpc):
    served, one, channel = fronted(profile, has_grpc=has_grpc)
    stub = STUBS[one.software](channel)
    one.operations(clear="early")
    answer = stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5), timeout=30)
    assert answer.success and "proven" in answer.message, answer
    assert one.state()[0] == {} and credited(served).get("e0", 0) == 0
    asked = "FlushCache" if has_grpc else "flush_cache" if one.software != "vllm" else "reset_prefix_cache"
    assert [asked in line for line in one.truth()["asked"] if "POST" in line].count(True) == 1, one.truth()["asked"]
    # Busy, then not: it is retried until it is idle.
    one.operations(busy_ms=300, clear="early")
    assert stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=30), timeout=60).success
    one.operations(busy=True)
    assert not stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=30).success
    with pytest.raises(grpc.RpcError) as error:
        stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=-1))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert stub.StartProfile(common_pb2.StartProfileRequest(), timeout=30).success
    assert one.truth()["profiling"]
    assert stub.StopProfile(common_pb2.StopProfileRequest(), timeout=30).success
    assert not one.truth()["profiling"]


def test_with_tokens_over_tls(sim, plane, generated, tmp_path):
    pb = generated("kvplane/v1/admin")
    certificates(tmp_path)
    one = sim("--profile", "sglang-0.5.22")
    config = tmp_path / "kvplane.toml"
    config.write_text(f"""
        [listen]
        tls = {{ cert = "{tmp_path}/cert.pem", key = "{tmp_path}/key.pem" }}
        [[auth.token]]
        name = "operator"
        role = "admin"
        env = "TEST_ADMIN_TOKEN"
        [[auth.token]]
        name = "gateway"
        role = "read"
        env = "TEST_READ_TOKEN"
        [[engine]]
        id = "e0"
        kind = "sglang"
        model = "sim"
        events = "{one.events[0]}"
        replay = "{one.replay[0]}"
        http = "{one.http}"
    """)
    served = plane(args=["--config", config], env=clean_environment(TEST_ADMIN_TOKEN="operators-secret-1", TEST_READ_TOKEN="gateways-secret-1"))
    ca = (tmp_path / "ca.pem").read_bytes()
    context = ssl.create_default_context(cadata=ca.decode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    port = served.http.rsplit(":", 1)[1]

    def post(token):
        request = urllib.request.Request(f"https://localhost:{port}/flush_cache", method="POST", data=b"{}")
        request.add_header("content-type", "application/json")
        if token:
            request.add_header("authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def calls(token):
        """The code of a flush over gRPC."""
        credentials = grpc.ssl_channel_credentials(root_certificates=ca)
        if token:
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        with grpc.secure_channel(f"localhost:{served.grpc.rsplit(':', 1)[1]}", credentials) as channel:
            try:
                return list(pb.AdminStub(channel).Flush(pb.FlushRequest(), timeout=30))[-1].summary.outcome
            except grpc.RpcError as error:
                return error.code()

    def until_live():
        request = urllib.request.Request(f"https://localhost:{port}/v1/status", headers={"authorization": "Bearer gateways-secret-1"})
        with opener.open(request, timeout=30) as response:
            return json.load(response)["engines"][0]["ranks"][0]["continuity"] == "live"

    eventually(until_live, "live")
    before = one.truth()["asked"]
    for token, status, code in [
        (None, 401, grpc.StatusCode.UNAUTHENTICATED), ("nobodys", 401, grpc.StatusCode.UNAUTHENTICATED),
        ("gateways-secret-1", 403, grpc.StatusCode.PERMISSION_DENIED),
    ]:
        answer = post(token)
        assert answer[0] == status and "e0" not in json.dumps(answer[1]), answer
        assert calls(token) == code
    assert one.truth()["asked"] == before, "nobody was asked"
    status, body = post("operators-secret-1")
    assert (status, body["ranks"][0]["verdict"]) == (200, "proven"), body
    assert calls("operators-secret-1") == pb.OUTCOME_ALL
    with pytest.raises(urllib.error.URLError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"https://localhost:{port}/healthz", timeout=30)
    assert "secret" not in served.log(), "tokens are not logged"
    assert "operator" in served.log(), "who asked is"
