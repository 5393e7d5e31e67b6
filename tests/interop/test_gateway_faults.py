"""What goes wrong behind the gateway, over real sockets: each fault ends with the right status, and with the right cause in the ledger."""

import http.client
import json
import threading

from harness.plane import http as fetch
from harness.wait import eventually
from test_envoy_engines import vocabulary  # noqa: F401
from test_gateway import RECEIPT, gateway  # noqa: F401

PROMPT = "Held by the first engine alone. " * 12


def warm(plane, sim, content=PROMPT, **headers):
    """The engine holds the prompt, and the plane knows it."""
    ask(sim, content, headers)
    eventually(lambda: predicted(plane, content) > 200, "events are applied")


def ask(sim, content, headers=None):
    """A chat with the engine itself."""
    connection = http.client.HTTPConnection(sim.http.removeprefix("http://"), timeout=60)
    body = {"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", **(headers or {})})
    assert connection.getresponse().status == 200
    connection.close()


def predicted(plane, content=PROMPT):
    """What the next decision would say of a chat."""
    body = {"model": "sim", "messages": [{"role": "user", "content": content}], "dry_run": True}
    status, answer = fetch("POST", plane.http + "/v1/pick", body)
    assert status == 200, answer
    return answer["endpoints"][0]["cached_tokens"]


def value(plane, name):
    """A metric's value; 0 where it is not there."""
    found = [line for line in plane.metrics().splitlines() if line.startswith(name + " ")]
    return float(found[0].split()[-1]) if found else 0.0


class Asking(threading.Thread):
    """A chat under way."""

    def __init__(self, plane, **more):
        super().__init__(daemon=True)
        self.plane, self.more, self.answer = plane, more, None
        self.start()

    def run(self):
        self.answer = self.plane.chat(PROMPT, **self.more)

    def settled(self):
        self.join(60)
        status, headers, body = self.answer
        assert status == 200, body
        name = headers[RECEIPT]
        return eventually(lambda: self.plane.settled(name), lambda: self.plane.receipt(name))


def held(sim):
    """Requests that the engine has taken and not begun."""
    return sim.truth()["held"]


def nothing_is_left(plane):
    eventually(lambda: value(plane, "kvplane_route_bookings") == 0, "every booking is over")
    assert value(plane, "kvplane_gateway_in_flight") == 0
    assert value(plane, 'kvplane_route_lost_tokens_total{cause="unknown"}') == 0


def test_restarted_between_the_decision_and_the_prefill(gateway):  # noqa: F811
    plane, sims = gateway(count=1)
    warm(plane, sims[0])
    sims[0].fault(service={"hold": True, "count": 1})
    asking = Asking(plane)
    eventually(lambda: held(sims[0]) == 1, "the engine has taken it")
    sims[0].fault(restart={})
    eventually(lambda: predicted(plane) == 0, "the plane has seen the restart")
    sims[0].fault(service={})
    receipt = asking.settled()
    assert receipt["delivered"]["cached_tokens"] == 0
    assert receipt["lost"] == {"restart": receipt["predicted_tokens"]} and receipt["predicted_tokens"] > 200
    nothing_is_left(plane)


def test_evicted_between_the_decision_and_the_prefill(gateway):  # noqa: F811
    plane, sims = gateway(count=1, words=("--blocks", 64))
    warm(plane, sims[0])
    sims[0].fault(service={"hold": True, "count": 1})
    asking = Asking(plane)
    eventually(lambda: held(sims[0]) == 1, "the engine has taken it")
    for other in range(8):
        sims[0].complete([1_000 * other + token for token in range(40 * 16)], max_tokens=1)
    eventually(lambda: predicted(plane) == 0, "the plane has seen the eviction")
    sims[0].fault(service={})
    receipt = asking.settled()
    assert receipt["lost"] == {"evicted_between": receipt["predicted_tokens"]} and receipt["predicted_tokens"] > 200
    nothing_is_left(plane)


def test_another_template_than_the_model_s(gateway):  # noqa: F811
    plane, sims = gateway(count=1)
    warm(plane, sims[0])
    sims[0].fault(service={"other_template": True})
    receipt = Asking(plane).settled()
    assert receipt["delivered"]["prompt_tokens"] != receipt["prompt_tokens"]
    assert receipt["lost"] == {"wrong_tokens": receipt["predicted_tokens"]} and receipt["predicted_tokens"] > 200
    nothing_is_left(plane)


def test_a_rank_that_is_refused(gateway):  # noqa: F811
    plane, sims = gateway(count=1, ranks=2)
    warm(plane, sims[0], **{"x-data-parallel-rank": "1"})
    sims[0].fault(service={"no_ranks": True})
    receipt = Asking(plane).settled()
    # The simulator takes its ranks in turn, and the first one holds nothing.
    assert receipt["candidates"][0]["rank"] == 1
    assert receipt["lost"] == {"wrong_rank": receipt["predicted_tokens"]} and receipt["predicted_tokens"] > 200
    nothing_is_left(plane)


def test_killed_within_an_answer(gateway):  # noqa: F811
    plane, sims = gateway(count=1)
    sims[0].fault(service={"die_after": 2, "count": 1})
    connection = http.client.HTTPConnection(plane.gateway.removeprefix("http://"), timeout=60)
    body = {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", RECEIPT: "1"})
    answer = connection.getresponse()
    assert answer.status == 200
    name, text = answer.getheader(RECEIPT), b""
    try:
        while piece := answer.read1():
            text += piece
        raise AssertionError("the answer has a proper end")
    except http.client.IncompleteRead:
        pass
    # What was written last may go with the connection.
    assert text.count(b'"content"') in (1, 2) and b"engine_lost" in text and b"[DONE]" not in text, text
    eventually(lambda: plane.receipt(name)["state"] == "aborted", lambda: plane.receipt(name))
    assert value(plane, 'kvplane_route_unledgered_total{reason="aborted"}') == 1
    assert value(plane, 'kvplane_gateway_ended_total{how="broken"}') == 1
    # The next one is as good as ever.
    assert Asking(plane).settled()["lost"] == {}
    nothing_is_left(plane)


def test_a_client_that_goes(gateway):  # noqa: F811
    plane, sims = gateway(count=1, words=("--token-ms", 20))
    connection = http.client.HTTPConnection(plane.gateway.removeprefix("http://"), timeout=60)
    body = {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 100_000, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", RECEIPT: "1"})
    answer = connection.getresponse()
    name = answer.getheader(RECEIPT)
    assert answer.read(20)
    assert sims[0].truth()["ranks"][0]["running"] == 1
    answer.close()
    connection.close()
    eventually(lambda: sims[0].truth()["ranks"][0]["running"] == 0, "the engine has ended it")
    eventually(lambda: plane.receipt(name)["state"] == "aborted", lambda: plane.receipt(name))
    nothing_is_left(plane)


def test_an_engine_that_is_full_passes_requests_on(gateway):  # noqa: F811
    plane, sims = gateway(count=2)
    warm(plane, sims[0])
    sims[0].fault(service={"status": 503, "count": 1})
    receipt = Asking(plane).settled()
    # A decision of its own: what the first engine held, this one was not promised.
    assert receipt["delivered"]["engine"] == "e1" and receipt["lost"].keys() <= {"eligibility"}
    assert value(plane, 'kvplane_gateway_retries_total{reason="status"}') == 1
    for one in sims:
        one.fault(service={"status": 503})
    assert plane.chat(PROMPT)[0] == 503
    nothing_is_left(plane)


def test_one_engine_prefills_and_another_decodes(gateway):  # noqa: F811
    roles = '[[gateway.endpoint]]\nengine = "e0"\nrole = "decode"\n[[gateway.endpoint]]\nengine = "e1"\nrole = "prefill"\n'
    plane, sims = gateway(count=2, gateway=f'forward = "ids"\n{roles}')
    for turn, stream in enumerate((False, True, False)):
        status, headers, body = plane.chat(PROMPT * (turn + 1), stream=stream)
        assert status == 200, body
        prefill = headers["x-kvplane-prefill-receipt"]
        receipt = eventually(lambda: plane.settled(prefill), lambda: plane.receipt(prefill))
        assert receipt["delivered"]["engine"] == "e1" and receipt["lost"] == {}, receipt
        assert receipt["delivered"]["cached_tokens"] >= receipt["predicted_tokens"]
        if not stream:
            # The engine that decodes was handed all blocks, and says so.
            usage = json.loads(body)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        assert plane.receipt(headers[RECEIPT])["candidates"][0]["engine"] == "e0"
    assert value(plane, 'kvplane_gateway_prefills_total{where="apart"}') == 3
    # With nobody to prefill, the other one does it itself.
    sims[1].process.kill()
    for _ in range(5):
        assert plane.chat(PROMPT * 9, stream=True)[0] == 200
    assert value(plane, 'kvplane_gateway_prefills_total{where="failed"}') >= 1
    nothing_is_left(plane)
