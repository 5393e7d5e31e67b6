"""What the endpoint picker changes on the way, and in every mode of sending bodies: models, headers, bodies; behind a real Envoy."""

import collections
import hashlib
import json

import pytest

from harness.echo import Echo
from harness.envoy import Envoy, PickerPlane, SUBSET_HEADER, chat, fetch, find_envoy, manager, modes, variant, with_subsets
from harness.wait import eventually

DUPLEX = "FULL_DUPLEX_STREAMED"
# Every pair that Envoy takes: full duplex on one side only is refused for what it does to trailers.
PAIRS = {
    "duplex_streamed": (DUPLEX, "STREAMED"),
    "duplex_none": (DUPLEX, "NONE"),
    "buffered_duplex": ("BUFFERED", DUPLEX),
    "buffered_buffered": ("BUFFERED", "BUFFERED"),
    "buffered_partial": ("BUFFERED", "BUFFERED_PARTIAL"),
    "partial_partial": ("BUFFERED_PARTIAL", "BUFFERED_PARTIAL"),
    "partial_streamed": ("BUFFERED_PARTIAL", "STREAMED"),
    "streamed_streamed": ("STREAMED", "STREAMED"),
    "streamed_none": ("STREAMED", "NONE"),
    "none_streamed": ("NONE", "STREAMED"),
    "none_duplex": ("NONE", DUPLEX),
}


def sees_body(name):
    return not PAIRS[name][0] in ("STREAMED", "NONE")


@pytest.fixture(scope="module")
def echoes():
    made = [Echo(), Echo(), Echo("127.0.0.2"), Echo("127.0.0.2")]
    yield made
    for echo in made:
        echo.close()


@pytest.fixture(scope="module")
def plane(binary, echoes):
    find_envoy()
    rules = '[[picker.rewrite]]\nmodel = "asked"\ntargets = {tuned-and-longer = 1}\n[[picker.rewrite]]\nmodel = "split"\ntargets = {a = 90, b = 10}\n'
    roles = ["both", "both", "encode", "encode"]
    places = "".join(f'[[picker.endpoint]]\naddress = "{echo.address}"\nrole = "{role}"\n' for echo, role in zip(echoes, roles))
    plane = PickerPlane(binary, '[picker]\nlisten = "127.0.0.1:0"\n' + rules + places)
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def envoy(plane):
    bootstrap = plane.bootstrap()
    with_subsets(bootstrap["static_resources"]["listeners"][0])
    for name, pair in PAIRS.items():
        variant(bootstrap, name, modes(*pair))

    def retries(listener):
        route = manager(listener)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        route["retry_policy"] = {"retry_on": "retriable-status-codes", "retriable_status_codes": [503], "num_retries": 3}

    variant(bootstrap, "retries", retries)
    made = Envoy(find_envoy(), bootstrap)
    made.wait_healthy()
    yield made
    made.close()


@pytest.fixture
def at(envoy):
    return envoy.address["inference"]


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_of_modes_passes_bodies_whole(envoy, name):
    for size in (10, 20_000):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()
        status, text, headers = fetch(envoy.address[name], "POST", "/v1/chat/completions", body)
        answer = json.loads(text)
        assert status == 200 and answer["sha256"] == hashlib.sha256(body).hexdigest()
        assert answer["headers"]["x-gateway-destination-endpoint"] == answer["served"]
    status, text, _ = fetch(envoy.address[name], "POST", "/v1/chat/completions", body, {"x-echo-events": "5,1"})
    assert status == 200 and text.count(b"data: ") == 5
    assert fetch(envoy.address[name], "GET", "/v1/models")[0] == 200


@pytest.mark.parametrize("name", ["inference", *PAIRS])
def test_another_model_is_asked_for_and_the_clients_is_answered(envoy, name):
    at = envoy.address[name]
    sees = name == "inference" or sees_body(name)
    changes = sees and (name == "inference" or PAIRS[name][1] != "NONE")
    expected = "asked" if changes or not sees else "tuned-and-longer"
    status, answer, _ = chat(at, model="asked")
    assert status == 200 and answer["model"] == expected
    body = json.dumps({"stream": True, "model": "asked", "messages": [{"role": "user", "content": '"model":"asked"'}]}).encode()
    status, text, _ = fetch(at, "POST", "/v1/chat/completions", body, {"x-echo-events": "4,5"})
    events = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]
    assert [event["model"] for event in events] == [expected] * 4


def test_what_reaches_the_engine_differs_in_the_model_alone(at, echoes):
    body = '{"x": [1,\t2], "model" : "asked","messages":[{"role":"user","content":"\\"model\\":\\"asked\\""}]}'
    status, text, _ = fetch(at, "POST", "/v1/chat/completions", body)
    assert status == 200
    expected = body.replace(': "asked"', ': "tuned-and-longer"').encode()
    assert json.loads(text)["sha256"] == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("header", ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"])
def test_a_gateway_in_front_may_name_the_model(at, echoes, header):
    echoes[0].requests.clear(), echoes[1].requests.clear()
    status, answer, _ = chat(at, model="mine", headers={header: "theirs"})
    assert status == 200 and answer["model"] == "mine"
    [seen] = [one for echo in echoes[:2] for one in echo.requests]
    assert seen["model"] == "theirs" and header not in seen["headers"]
    # A rule of the operator's comes first.
    assert chat(at, model="asked", headers={header: "theirs"})[0] == 200
    assert [one["model"] for echo in echoes[:2] for one in echo.requests].count("tuned-and-longer") == 1


def test_models_share_requests_by_their_weights(at, plane, echoes):
    for echo in echoes:
        echo.requests.clear()
    before = plane.metric("kvplane_picker_rewritten_total")
    assert all(chat(at, model="split")[1]["model"] == "split" for _ in range(40))
    shares = collections.Counter(one["model"] for echo in echoes for one in echo.requests)
    assert set(shares) == {"a", "b"} and 2 <= shares["b"] <= 6, shares
    assert plane.metric("kvplane_picker_rewritten_total") == before + 40


def test_images_are_encoded_by_those_who_do(at, echoes):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    forged = {"x-encoder-hosts-ports": "6.6.6.6:6"}
    for images in (0, 1, 2, 3):
        content = [{"type": "text", "text": "what is this?"}, *[image] * images]
        status, answer, _ = chat(at, content, headers=forged)
        assert status == 200 and answer["served"] in {echo.address for echo in echoes[:2]}
        named = answer["headers"].get("x-encoder-hosts-ports", "").split(",")
        assert len(set(named)) == len(named) == max(1, min(images, 2))
        assert set(named) <= ({echo.address for echo in echoes[2:]} if images else {""})


def test_no_header_of_the_protocol_passes(at):
    """Everything of routing.md 1.4 that a picker sets or reads; what is not a picker's passes."""
    names = [
        "x-gateway-destination-endpoint-subset", "x-gateway-destination-endpoint-scores", "x-gateway-destination-endpoint-served",
        "x-llm-d-inference-objective", "x-gateway-inference-objective", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id",
        "x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms",
        "x-prefiller-host-port", "x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-data-parallel-host-port", "x-data-parallel-rank",
        "x-llm-d-request-dropped-reason",
    ]
    kept = {"x-request-id": "r", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "authorization": "Bearer x"}
    forged = {name.title(): "6.6.6.6:6" for name in [*names, "x-gateway-destination-endpoint"]}
    status, answer, _ = chat(at, headers={**forged, **kept})
    seen = answer["headers"]
    assert status == 200 and not set(names) & set(seen), set(names) & set(seen)
    assert seen["x-gateway-destination-endpoint"] == answer["served"] != "6.6.6.6:6"
    assert {name: seen[name] for name in kept} == kept


def test_an_engines_error_is_tried_again_where_the_gateway_says_so(envoy, echoes):
    for echo in echoes:
        echo.requests.clear()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "again"}]}).encode()
    status, text, _ = fetch(envoy.address["retries"], "POST", "/v1/chat/completions", body, {"x-echo-status": "503"})
    assert status == 503
    sent = [one["sha256"] for echo in echoes for one in echo.requests]
    assert sent == [hashlib.sha256(body).hexdigest()] * 4, "each time with the whole body"


def test_ports_of_one_address_are_endpoints_of_their_own(binary):
    """Data-parallel ranks by ports, and restrictions of each address."""
    hosts = ["127.0.0.1", "127.0.0.2"]
    ranks = [Echo(host) for host in hosts for _ in range(3)]
    places = "".join(f'[[picker.endpoint]]\naddress = "{one.address}"\nrank = {at % 3}\n' for at, one in enumerate(ranks))
    plane = PickerPlane(binary, '[picker]\nlisten = "127.0.0.1:0"\n' + places)
    bootstrap = plane.bootstrap()
    with_subsets(bootstrap["static_resources"]["listeners"][0])
    envoy = Envoy(find_envoy(), bootstrap)
    try:
        envoy.wait_healthy()
        at = envoy.address["inference"]
        served = lambda subset: {chat(at, headers={SUBSET_HEADER: subset})[1]["served"] for _ in range(12)}
        assert served("127.0.0.2") == {one.address for one in ranks[3:]}
        assert served(f"{ranks[0].address},{ranks[4].address}") == {ranks[0].address, ranks[4].address}
        assert served(ranks[5].address) == {ranks[5].address}
        eventually(lambda: plane.metric("kvplane_picker_streams") == 0, "every stream is over")
    finally:
        envoy.close()
        plane.close()
        for one in ranks:
            one.close()
