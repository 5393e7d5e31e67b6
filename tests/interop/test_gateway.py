"""The gateway in front of simulated engines: the ledger adds up, and no request goes with an engine."""

import pytest

from harness.gateway import GatewayPlane
from harness.plane import http
from harness.wait import eventually
from test_envoy_engines import vocabulary  # noqa: F401

RECEIPT = "x-kvplane-receipt"


@pytest.fixture
def gateway(binary, sim, vocabulary):  # noqa: F811
    """Makes simulators and a gateway over them."""
    made = []

    def make(count=2, gateway="", more="", tokenizer=True, words=(), ranks=1):
        size = () if "--blocks" in words else ("--blocks", 4096)
        sims = [sim(*size, *words, ranks=ranks) for _ in range(count)]
        if tokenizer:
            more += f'\n[[model]]\nname = "sim"\ntokenizer = "{vocabulary}"\n'
        plane = GatewayPlane(binary, sims, gateway, more)
        made.append(plane)
        eventually(lambda: http("GET", plane.gateway + "/health")[0] == 200 or plane.has_keys, "the gateway is up")
        plane.until_live(count * ranks)
        return plane, sims

    yield make
    for plane in made:
        plane.close()


def test_what_is_predicted_is_delivered(gateway):
    plane, _ = gateway(gateway='forward = "ids"')
    settled = None
    for turn in range(6):
        text = "A long story about an engine. " * (8 + turn)
        status, headers, body = plane.chat(text, stream=bool(turn % 2))
        assert status == 200, body
        name = headers[RECEIPT]
        settled = eventually(lambda: plane.settled(name), lambda: plane.receipt(name))
        assert settled["lost"] == {} and settled["delivered"]["cached_tokens"] >= settled["predicted_tokens"], settled
        assert settled["delivered"]["prompt_tokens"] == settled["prompt_tokens"] > len(text)
        plane.until_live(2)
    assert settled["delivered"]["cached_tokens"] > 200
    page = plane.metrics()
    assert 'kvplane_route_lost_tokens_total{cause="unknown"} 0' in page
    assert 'kvplane_gateway_decisions_total{by="tokens"} 6' in page
    assert "kvplane_gateway_forwarded_ids_total 6" in page


def test_an_engine_that_dies_takes_no_request_with_it(gateway):
    plane, sims = gateway(count=3, tokenizer=False)
    sims[0].process.kill()
    for _ in range(20):
        status, _, body = plane.chat()
        assert status == 200, body
