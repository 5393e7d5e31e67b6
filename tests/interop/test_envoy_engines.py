"""Simulated engines behind a real Envoy and the endpoint picker: what is predicted is delivered, and what is not has a cause."""

import json
import socket
import subprocess
import tomllib

import pytest
import yaml

from harness.echo import Echo
from harness.envoy import Envoy, PickerPlane, chat, fetch, find_envoy, live, modes, variant
from harness.plane import ROOT, clean_environment, run
from harness.wait import eventually

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RECEIPT = "x-kvplane-receipt"
BLOCK = 16


def byte_level():
    """The 256 characters that stand for bytes in a vocabulary, as GPT-2 chose them."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for byte in range(256):
        if byte in kept:
            names[chr(byte)] = byte
        else:
            names[chr(256 + extra)] = byte
            extra += 1
    return names


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """A tokenizer whose ids are bytes, as the simulator's are."""
    directory = tmp_path_factory.mktemp("bytes")
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": pre, "post_processor": None, "decoder": pre,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": byte_level(), "merges": [],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "chat_template.jinja").write_text(CHATML)
    return directory


@pytest.fixture
def fleet(binary, sim, vocabulary):
    """Makes simulators, a plane with a picker over them, and an Envoy in front."""
    find_envoy()
    made = []

    def make(count=2, picker="", ranks=1, change=None):
        sims = [sim("--model", "m", ranks=ranks) for _ in range(count)]
        config = f'[picker]\nlisten = "127.0.0.1:0"\n{picker}\n'
        for at, one in enumerate(sims):
            config += f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\nranks = {ranks}\nhttp = "{one.http}"\n'
            config += f'[[picker.endpoint]]\naddress = "{one.http.removeprefix("http://")}"\n'
        config += f'[[model]]\nname = "m"\ntokenizer = "{vocabulary}"\n'
        plane = PickerPlane(binary, config)
        made.append(plane)
        bootstrap = plane.bootstrap()
        if change:
            change(bootstrap)
        envoy = Envoy(find_envoy(), bootstrap)
        made.append(envoy)
        envoy.wait_healthy()
        eventually(lambda: live(plane, count * ranks), "all engines are live", 30)
        return sims, plane, envoy

    yield make
    for one in reversed(made):
        one.close()


def ask(envoy, content, headers=None, **more):
    """A chat that asks for its receipt."""
    status, answer, got = chat(envoy.address["inference"], content, {RECEIPT: "1", **(headers or {})}, max_tokens=4, **more)
    return status, answer, got.get(RECEIPT)


def settled(plane, name):
    return eventually(lambda: (found := plane.receipt(name))["state"] == "settled" and found, f"receipt {name}")


def test_what_is_predicted_is_delivered(fleet):
    sims, plane, envoy = fleet()
    first = "shared prefix, " * 20
    for turn in range(6):
        prompt = first + f"turn {turn} " * turn
        status, answer, name = ask(envoy, prompt)
        assert status == 200
        receipt = settled(plane, name)
        usage = answer["usage"]
        assert usage["prompt_tokens"] == receipt["prompt_tokens"], "the tokenizer agrees with the engine"
        assert receipt["predicted_tokens"] == receipt["delivered"]["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert receipt["lost"] == {}
        if turn:
            assert receipt["why"] == "cached" and receipt["predicted_tokens"] > 200
        # The next decision is made with what this one stored.
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        eventually(lambda: predicted(plane, prompt) >= (tokens - 5) // BLOCK * BLOCK, "events are applied", 30)
    assert plane.metric("kvplane_picker_wrong_endpoints_total") == 0
    assert plane.metric("kvplane_route_bookings") == 0
    assert plane.metric("kvplane_picker_ended_total", how="usage") == 6


def predicted(plane, prompt):
    """What /v1/pick would say of a chat: the same decision."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "dry_run": True}
    status, text, _ = fetch(plane.http.removeprefix("http://"), "POST", "/v1/pick", json.dumps(body), {"content-type": "application/json"})
    assert status == 200, text
    return json.loads(text)["endpoints"][0]["cached_tokens"]


def test_streams_report_usage_only_when_asked_and_withhold_it_again(fleet):
    sims, plane, envoy = fleet(1, picker="include_usage = true\ntoken_in = true")
    events = lambda **more: fetch(
        envoy.address["inference"], "POST", "/v1/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 20}], "stream": True, "max_tokens": 3, **more}),
        {"content-type": "application/json", RECEIPT: "1"},
    )
    status, body, headers = events()
    assert status == 200 and body.count(b"data: ") == 4 and b"prompt_tokens" not in body, body
    receipt = settled(plane, headers[RECEIPT])
    assert receipt["delivered"]["prompt_tokens"] == receipt["prompt_tokens"]
    assert receipt["delivered"]["first_token_ms"] is not None
    status, body, _ = events(stream_options={"include_usage": True})
    assert status == 200 and body.count(b"data: ") == 5 and b"prompt_tokens" in body, body
    status, body, headers = events(stream_options={"include_usage": False})
    assert status == 200 and b"prompt_tokens" not in body
    eventually(lambda: plane.metric("kvplane_picker_ended_total", how="no_usage") == 1, "an answer without usage is counted")
    assert plane.metric("kvplane_route_bookings") == 0


def test_usage_is_withheld_in_whatever_way_answers_pass(fleet):
    """Where Envoy sends no bodies of answers, nothing is asked for that could not be taken out again."""

    def change(bootstrap):
        variant(bootstrap, "streamed", modes("BUFFERED", "STREAMED"))
        variant(bootstrap, "none", modes("BUFFERED", "NONE"))

    sims, plane, envoy = fleet(1, picker="include_usage = true", change=change)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 20}], "stream": True, "max_tokens": 3})
    for name, known in (("inference", True), ("streamed", True), ("none", False)):
        status, text, headers = fetch(envoy.address[name], "POST", "/v1/chat/completions", body, {"content-type": "application/json", RECEIPT: "1"})
        assert status == 200 and text.count(b"data: ") == 4 and b"prompt_tokens" not in text, (name, text)
        if known:
            receipt = settled(plane, headers[RECEIPT])
            assert receipt["delivered"]["prompt_tokens"] == receipt["prompt_tokens"]
    eventually(lambda: plane.metric("kvplane_route_bookings") == 0, "every booking is over")


def test_who_holds_the_prompt_is_named_where_blocks_can_be_pulled(binary, vocabulary, sim):
    find_envoy()
    sims, echoes = [sim("--model", "m") for _ in range(2)], [Echo(), Echo()]
    config = '[picker]\nlisten = "127.0.0.1:0"\npolicy = "round_robin"\npull_from = 16\n'
    for at, (one, echo) in enumerate(zip(sims, echoes)):
        config += f'[[picker.endpoint]]\naddress = "{echo.address}"\nengine = "e{at}"\n'
        config += f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\n'
    config += f'[[model]]\nname = "m"\ntokenizer = "{vocabulary}"\n'
    plane = PickerPlane(binary, config)
    envoy = Envoy(find_envoy(), plane.bootstrap())
    try:
        envoy.wait_healthy()
        eventually(lambda: live(plane, 2), "live", 30)
        prompt = "held by the first engine " * 10
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4})
        held = fetch(sims[0].http.removeprefix("http://"), "POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        assert held[0] == 200
        eventually(lambda: predicted(plane, prompt) > 200, "events are applied", 30)
        forged = {"x-kv-cache-source-host-port": "6.6.6.6:6"}
        named = {}
        for _ in range(6):
            status, answer, _ = chat(envoy.address["inference"], prompt, forged)
            assert status == 200
            named.setdefault(answer["served"], set()).add(answer["headers"].get("x-kv-cache-source-host-port"))
        assert named == {echoes[0].address: {None}, echoes[1].address: {echoes[0].address}}
    finally:
        envoy.close()
        plane.close()
        for echo in echoes:
            echo.close()


def test_another_endpoint_than_the_picked_one_is_a_cause(fleet):
    """Envoy does not know the picked endpoint, and sends the request elsewhere without a word."""

    def forget_first(bootstrap):
        places = bootstrap["static_resources"]["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        del places[0]

    sims, plane, envoy = fleet(change=forget_first)
    prompt = "held by the first engine " * 10
    status, text, _ = fetch(
        sims[0].http.removeprefix("http://"), "POST", "/v1/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}), {"content-type": "application/json"},
    )
    assert status == 200
    eventually(lambda: predicted(plane, prompt) > 200, "events are applied", 30)
    status, answer, name = ask(envoy, prompt)
    assert status == 200
    receipt = settled(plane, name)
    assert receipt["lost"] == {"wrong_endpoint": receipt["predicted_tokens"]}
    assert receipt["delivered"]["engine"] == "e1"
    assert plane.metric("kvplane_picker_wrong_endpoints_total") == 1
    plane.logged("an endpoint other than the picked one answered")


def test_a_dead_first_endpoint_is_followed_by_the_second(binary, fleet):
    sims, plane, envoy = fleet(picker="fallbacks = 1\nscores = true")
    prompt = "held by the first engine " * 10
    fetch(
        sims[0].http.removeprefix("http://"), "POST", "/v1/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}), {"content-type": "application/json"},
    )
    eventually(lambda: predicted(plane, prompt) > 200, "events are applied", 30)
    sims[0].process.kill()
    sims[0].process.wait()
    # The plane may or may not know yet that it is gone: the gateway finds out by itself.
    status, answer, name = ask(envoy, prompt)
    assert status == 200
    receipt = settled(plane, name)
    if receipt["predicted_tokens"]:
        assert receipt["delivered"]["attempts"] == 2
        assert receipt["lost"] == {"wrong_endpoint": receipt["predicted_tokens"]}


def test_ranks_are_named_by_a_header(fleet):
    sims, plane, envoy = fleet(1, ranks=2)
    prompt = "only one rank holds this " * 10
    fetch(
        sims[0].http.removeprefix("http://"), "POST", "/v1/chat/completions",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}),
        {"content-type": "application/json", "x-data-parallel-rank": "1"},
    )
    eventually(lambda: predicted(plane, prompt) > 200, "events are applied", 30)
    for _ in range(4):
        # Without the header the simulator takes its ranks in turn.
        status, answer, name = ask(envoy, prompt, headers={"x-data-parallel-rank": "0"})
        assert status == 200
        receipt = settled(plane, name)
        assert receipt["delivered"]["cached_tokens"] >= receipt["predicted_tokens"] > 200
        assert receipt["candidates"][0]["rank"] == 1


def test_only_where_something_is_cached(fleet):
    sims, plane, envoy = fleet(1)
    status, answer, _ = chat(envoy.address["inference"], "nobody holds this " * 10, {"prefer": "if-available"})
    assert status == 412 and answer["error"]["type"] == "not_cached"
    assert plane.metric("kvplane_route_bookings") == 0
    assert chat(envoy.address["inference"], "nobody holds this " * 10)[0] == 200


def test_clients_that_go_end_their_bookings(binary, vocabulary, sim):
    """In both phases: while the body is on its way, and while the answer is."""
    find_envoy()
    one, echo = sim("--model", "m"), Echo()
    config = (
        f'[picker]\nlisten = "127.0.0.1:0"\n[[picker.endpoint]]\naddress = "{echo.address}"\nengine = "e0"\n'
        f'[[engine]]\nid = "e0"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\n'
        f'[[model]]\nname = "m"\ntokenizer = "{vocabulary}"\n'
    )
    plane = PickerPlane(binary, config)
    envoy = Envoy(find_envoy(), plane.bootstrap())
    try:
        envoy.wait_healthy()
        eventually(lambda: live(plane, 1), "live", 30)
        host, port = envoy.address["inference"].rsplit(":", 1)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 200}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-echo-events: 100000,20\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(head + body[:20])
            eventually(lambda: plane.metric("kvplane_picker_streams") == 1, "the request is under way")
        eventually(lambda: plane.metric("kvplane_picker_streams") == 0, "the client is gone")
        assert plane.metric("kvplane_picker_requests_total") == 0
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(head + body)
            seen = b""
            while seen.count(b"data: ") < 3:
                seen += client.recv(65536)
            assert plane.metric("kvplane_route_bookings") == 1
        eventually(lambda: plane.metric("kvplane_route_bookings") == 0, "the booking is over")
        assert plane.metric("kvplane_picker_ended_total", how="aborted") == 1
        assert plane.metric("kvplane_route_unledgered_total", reason="aborted") == 1
        eventually(lambda: echo.gone == 1, "the engine's connection is closed", 30)
    finally:
        envoy.close()
        plane.close()
        echo.close()


def test_saturated_and_sheddable_is_429(binary, vocabulary, sim):
    find_envoy()
    one, echo = sim("--model", "m"), Echo()
    config = (
        f'[picker]\nlisten = "127.0.0.1:0"\nshed_at = 1\nobjectives = {{batch = -1, chat = 1}}\n'
        f'[[picker.endpoint]]\naddress = "{echo.address}"\nengine = "e0"\n'
        f'[[engine]]\nid = "e0"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\n'
    )
    plane = PickerPlane(binary, config)
    envoy = Envoy(find_envoy(), plane.bootstrap())
    try:
        envoy.wait_healthy()
        eventually(lambda: live(plane, 1), "live", 30)
        at = envoy.address["inference"]
        host, port = at.rsplit(":", 1)
        body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-echo-events: 100000,20\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            assert client.recv(65536)
            for name in ("x-llm-d-inference-objective", "x-gateway-inference-objective"):
                status, answer, headers = chat(at, headers={name: "batch"})
                assert status == 429 and answer["error"]["type"] == "saturated"
                assert headers["retry-after"] and headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            assert chat(at, headers={"x-llm-d-inference-objective": "chat"})[0] == 200
        eventually(lambda: plane.metric("kvplane_route_bookings") == 0, "the booking is over")
        assert chat(at, headers={"x-llm-d-inference-objective": "batch"})[0] == 200
        # Without a tokenizer the load decides, and says so.
        assert plane.metric("kvplane_picker_without_tokens_total", reason="no_tokenizer") >= 2
    finally:
        envoy.close()
        plane.close()
        echo.close()


def test_a_long_prompt_is_prefilled_elsewhere(binary, vocabulary, sim):
    find_envoy()
    sims, echoes = [sim("--model", "m") for _ in range(2)], [Echo(), Echo()]
    config = '[picker]\nlisten = "127.0.0.1:0"\n'
    for at, (one, echo, role) in enumerate(zip(sims, echoes, ("prefill", "decode"))):
        config += f'[[picker.endpoint]]\naddress = "{echo.address}"\nengine = "e{at}"\nrole = "{role}"\n'
        config += f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\n'
    config += f'[[model]]\nname = "m"\ntokenizer = "{vocabulary}"\n'
    plane = PickerPlane(binary, config)
    envoy = Envoy(find_envoy(), plane.bootstrap())
    try:
        envoy.wait_healthy()
        eventually(lambda: live(plane, 2), "live", 30)
        status, answer, _ = chat(envoy.address["inference"], "long " * 40)
        assert status == 200 and answer["served"] == echoes[1].address
        assert answer["headers"]["x-prefiller-host-port"] == echoes[0].address
        eventually(lambda: plane.metric("kvplane_route_bookings") == 0, "both bookings are over")
    finally:
        envoy.close()
        plane.close()
        for echo in echoes:
            echo.close()


def test_the_bootstrap_that_is_shipped(binary, tmp_path):
    """It is what `envoy-config` prints for the configuration beside it, and Envoy takes it as it stands."""
    envoy = find_envoy()
    directory = ROOT / "deploy" / "envoy"
    done = run(binary, "picker", "envoy-config", "--config", directory / "kvplane.toml")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout) == yaml.safe_load((directory / "envoy.yaml").read_text())
    words = [envoy, "--mode", "validate", "-c", directory / "envoy.yaml"]
    checked = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr[-2000:]


BY_POOL = ["--pool-name", "llama", "--pool-namespace", "prod", "--pool-group", "inference.networking.k8s.io"]
BY_LABELS = ["--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001", "--drain-timeout", "30s"]


@pytest.mark.parametrize("chosen", [BY_POOL, BY_LABELS], ids=["pool", "labels"])
def test_a_pool_without_a_cluster_is_refused_in_words(binary, tmp_path, chosen):
    """No pod, and no kubeconfig in the home directory; but every flag is one that llm-d's router has."""
    words = ["picker", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *chosen]
    read = run(binary, *words, "--dump-config", env=clean_environment(HOME=str(tmp_path)))
    assert read.returncode == 0, read.stderr
    picker = tomllib.loads(read.stdout)["picker"]
    if chosen is BY_LABELS:
        assert picker["pods"] == {"selector": "app=vllm", "ports": [8000, 8001], "namespace": "default"}
        assert picker["drain"] == "30s"
    else:
        assert picker["pool"] == {"name": "llama", "namespace": "prod"}
    done = run(binary, *words, env=clean_environment(HOME=str(tmp_path)))
    assert done.returncode == 1 and "picker.pool" in done.stderr and "kubeconfig" in done.stderr, done
