"""The endpoint picker behind a real Envoy, with backends that say what reached them."""

import collections
import hashlib
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from harness.echo import Echo
from harness.envoy import Envoy, PickerPlane, SUBSET_HEADER, chat, ext_proc, fetch, find_envoy, modes, variant, with_subsets
from harness.wait import eventually


def endpoints(echoes):
    return "".join(f'[[picker.endpoint]]\naddress = "{echo.address}"\n' for echo in echoes)


@pytest.fixture(scope="module")
def echoes():
    made = [Echo(), Echo("127.0.0.2"), Echo("127.0.0.2")]
    yield made
    for echo in made:
        echo.close()


@pytest.fixture(scope="module")
def plane(binary, echoes):
    find_envoy()
    picker = '[picker]\nlisten = "127.0.0.1:0"\nhealth = "127.0.0.1:0"\nmax_body = "2MiB"\nshed_at = 1\nobjectives = {batch = -1}\n'
    plane = PickerPlane(binary, picker + endpoints(echoes))
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def envoy(plane, echoes):
    bootstrap = plane.bootstrap()
    with_subsets(bootstrap["static_resources"]["listeners"][0])
    variant(bootstrap, "buffered", modes("BUFFERED", "STREAMED"))
    variant(bootstrap, "buffered_none", modes("BUFFERED", "NONE"))
    variant(bootstrap, "none", modes("NONE", "NONE"))
    variant(bootstrap, "listed", lambda listener: with_subsets(listener, [echoes[0].address, echoes[2].address]))
    variant(bootstrap, "nobody", lambda listener: with_subsets(listener, ["10.9.9.9:1"]))
    made = Envoy(find_envoy(), bootstrap)
    made.wait_healthy()
    yield made
    made.close()


@pytest.fixture
def at(envoy):
    return envoy.address["inference"]


def digest(body):
    return hashlib.sha256(body).hexdigest()


def test_get_without_a_body(at):
    status, body, _ = fetch(at, "GET", "/v1/models")
    assert status == 200 and json.loads(body)["length"] == 0


def test_a_small_body_over_http_1_and_2(at):
    body = b'{"model":"m","prompt":"hi"}'
    assert len(body) == 27
    status, text, _ = fetch(at, "POST", "/v1/completions", body, {"content-type": "application/json"})
    assert status == 200 and json.loads(text)["sha256"] == digest(body)
    words = ["curl", "-sS", "--http2-prior-knowledge", "-d", "@-", f"http://{at}/v1/completions", "-H", "content-type: application/json"]
    done = subprocess.run(words, input=body, capture_output=True, check=True)
    assert json.loads(done.stdout)["sha256"] == digest(body)


def test_a_body_of_a_megabyte_comes_back_whole(at):
    body = json.dumps({"model": "m", "prompt": "x" * 1_000_000}).encode()
    status, text, _ = fetch(at, "POST", "/v1/completions", body)
    assert status == 200
    assert (json.loads(text)["length"], json.loads(text)["sha256"]) == (len(body), digest(body))


def test_a_chunked_request_with_trailers(at):
    host, port = at.rsplit(":", 1)
    body = b'{"model":"m","prompt":"chunks"}'
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntrailer: x-t\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (body[:7], body[7:]):
            client.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        client.sendall(b"0\r\nx-t: 1\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b" 200 " in answer.split(b"\r\n", 1)[0]
    assert digest(body).encode() in answer


def test_a_body_over_the_limit_is_413(at):
    status, text, headers = fetch(at, "POST", "/v1/completions", b'{"model":"m","prompt":"' + b"x" * (3 << 20))
    assert status == 413 and headers["content-type"] == "application/json"
    assert "2097152" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[]}', b'{"model":"m"}', b"\xff"])
def test_a_body_that_cannot_be_understood_is_400(at, body):
    status, text, headers = fetch(at, "POST", "/v1/chat/completions", body or b" ")
    assert status == 400 and json.loads(text)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("allowed", [(0,), (0, 1), (0, 1, 2), (2,)])
def test_a_hundred_requests_never_leave_the_subset(at, echoes, allowed):
    subset = ",".join(echoes[one].address for one in allowed)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: chat(at, headers={SUBSET_HEADER: subset}), range(100)))
    assert all(status == 200 for status, _, _ in answers)
    served = collections.Counter(answer["served"] for _, answer, _ in answers)
    assert set(served) == {echoes[one].address for one in allowed}


def test_a_subset_may_name_a_whole_address(at, echoes):
    served = {chat(at, headers={SUBSET_HEADER: "127.0.0.2"})[1]["served"] for _ in range(6)}
    assert served == {echoes[1].address, echoes[2].address}


def test_a_subset_as_a_list(envoy, echoes):
    served = {chat(envoy.address["listed"])[1]["served"] for _ in range(6)}
    assert served == {echoes[0].address, echoes[2].address}


def test_a_subset_without_an_endpoint_is_503(envoy, at, echoes):
    for status, answer, headers in (chat(envoy.address["nobody"]), chat(at, headers={SUBSET_HEADER: "10.1.1.1:1"})):
        assert status == 503 and answer["error"]["type"] == "no_endpoint"
        assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert headers["retry-after"]


def test_what_a_client_forges_is_replaced(at, echoes):
    forged = {
        "x-gateway-destination-endpoint": "10.0.0.1:1", "x-prefiller-host-port": "10.0.0.1:1", "x-data-parallel-rank": "7",
        "x-llm-d-inference-objective": "chat", "x-request-id": "kept", SUBSET_HEADER: echoes[1].address,
    }
    status, answer, _ = chat(at, headers=forged)
    seen = answer["headers"]
    assert status == 200 and answer["served"] == echoes[1].address
    assert seen["x-gateway-destination-endpoint"] == echoes[1].address
    assert seen["x-request-id"] == "kept"
    assert not {"x-prefiller-host-port", "x-data-parallel-rank", "x-llm-d-inference-objective"} & set(seen)


def test_an_engines_error_passes(at):
    status, answer, _ = chat(at, headers={"x-echo-status": "503"})
    assert status == 503 and answer["sha256"]


@pytest.mark.parametrize("name", ["buffered", "buffered_none", "none"])
def test_other_modes(envoy, echoes, name):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
    seen = set()
    for _ in range(6):
        status, text, _ = fetch(envoy.address[name], "POST", "/v1/chat/completions", body)
        answer = json.loads(text)
        assert status == 200 and answer["sha256"] == digest(body)
        assert answer["headers"]["x-gateway-destination-endpoint"] == answer["served"]
        seen.add(answer["served"])
    assert seen == {echo.address for echo in echoes}
    assert fetch(envoy.address[name], "GET", "/v1/models")[0] == 200


def test_a_buffered_body_over_envoys_limit_is_envoys_413(envoy):
    assert fetch(envoy.address["buffered"], "POST", "/v1/completions", b"x" * 200_000)[0] == 413


def test_events_pass_as_they_come(at, echoes):
    """Each within milliseconds; a machine that is busy may take longer, and never the pause of the next."""
    host, port = at.rsplit(":", 1)
    target, pause = echoes[0], 250
    target.sent.clear()
    body = b'{"model":"m","prompt":"hi"}'
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{SUBSET_HEADER}: {target.address}\r\nx-echo-events: 6,{pause}\r\ncontent-length: {len(body)}\r\n\r\n"
    came, seen = [], b""
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(head.encode() + body)
        while b"\r\n0\r\n" not in seen:
            seen += (part := client.recv(65536))
            assert part, seen
            came += [time.monotonic()] * part.count(b"data: ")
    delays = sorted((there - here) * 1000 for here, there in zip(target.sent, came, strict=True))
    assert delays[len(delays) // 2] < pause / 2, delays
    assert delays[-1] < pause, delays


def test_two_hundred_streams_at_once(at, plane, echoes):
    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: fetch(at, "POST", "/v1/completions", b'{"model":"m","prompt":"x"}', {"x-echo-events": "5,50"}), range(200)))
    assert {status for status, _, _ in answers} == {200}
    assert all(body.count(b"data: ") == 5 for _, body, _ in answers)
    eventually(lambda: plane.metric("kvplane_picker_streams") == 0, "every stream is over")
    assert plane.metric("kvplane_picker_held_bytes") == 0


def test_health_names(plane):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    names = ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"]
    for address in (plane.picker, plane.logged("picker listening")[0]["health"]):
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for name in names:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING, name


def test_h2_trailers(plane, binary):
    """gRPC through Envoy: its status is a trailer of the answer, and its messages are bodies that are sent back both ways."""

    def handler(request, context):
        context.set_trailing_metadata((("x-trailer", "kept"),))
        return request[::-1]

    method = grpc.unary_unary_rpc_method_handler(handler)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Turn": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    picker = PickerPlane(binary, f'[picker]\nlisten = "127.0.0.1:0"\n[[picker.endpoint]]\naddress = "127.0.0.1:{port}"\n')
    try:
        bootstrap = picker.bootstrap()
        options = bootstrap["static_resources"]["clusters"][0]["typed_extension_protocol_options"]
        next(iter(options.values()))["explicit_http_config"] = {"http2_protocol_options": {}}
        envoy = Envoy(find_envoy(), bootstrap)
        try:
            envoy.wait_healthy()
            with grpc.insecure_channel(envoy.address["inference"]) as channel:
                call = channel.unary_unary("/echo.Echo/Turn")
                answer, state = call.with_call(b"abc" * 40_000, timeout=30)
            assert answer == b"cba" * 40_000
            assert ("x-trailer", "kept") in state.trailing_metadata()
        finally:
            envoy.close()
    finally:
        picker.close()
        server.stop(None)


def test_tls_with_a_certificate_of_its_own(binary, echoes):
    picker = PickerPlane(binary, '[picker]\nlisten = "127.0.0.1:0"\nself_signed = true\n' + endpoints(echoes))
    try:
        envoy = Envoy(find_envoy(), picker.bootstrap())
        try:
            envoy.wait_healthy()
            assert chat(envoy.address["inference"])[0] == 200
            assert picker.metric("kvplane_picker_requests_total") == 1
        finally:
            envoy.close()
    finally:
        picker.close()


def test_the_pick_is_ignored_without_its_namespace(plane, echoes):
    """What the guide warns of: without `receiving_namespaces` Envoy falls back to its own turn. kvplane notices."""
    bootstrap = plane.bootstrap()
    with_subsets(bootstrap["static_resources"]["listeners"][0])
    del ext_proc(bootstrap["static_resources"]["listeners"][0])["metadata_options"]["receiving_namespaces"]
    envoy = Envoy(find_envoy(), bootstrap)
    try:
        envoy.wait_healthy()
        served = {chat(envoy.address["inference"], headers={SUBSET_HEADER: echoes[0].address})[1]["served"] for _ in range(9)}
        assert len(served) == 3
    finally:
        envoy.close()


def test_original_dst_takes_the_header(plane, echoes):
    """llm-d's standalone chart has this cluster."""
    bootstrap = plane.bootstrap()
    with_subsets(bootstrap["static_resources"]["listeners"][0])
    bootstrap["static_resources"]["clusters"][0] = {
        "name": "engines", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "2s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
    }
    envoy = Envoy(find_envoy(), bootstrap)
    try:
        envoy.wait_healthy()
        for echo in echoes:
            status, answer, _ = chat(envoy.address["inference"], headers={SUBSET_HEADER: echo.address})
            assert status == 200 and answer["served"] == echo.address
    finally:
        envoy.close()
