"""`/openapi.json`, read by others' software, and every answer of a live plane held against it."""

import functools
import json
import operator
import re
import urllib.parse
import urllib.request

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from harness.plane import ROOT, http

PROMPT = list(range(100, 164))


class Contract:
    """The document of a plane, and whether answers are as it says."""

    def __init__(self, plane):
        self.plane = plane
        status, self.document = http("GET", plane.http + "/openapi.json")
        assert status == 200
        self.registry = Registry().with_resource("urn:document", Resource(self.document, DRAFT202012))
        self.asked = set()

    def found(self, part):
        """A part of the document, or what it refers to."""
        if "$ref" in part:
            names = part["$ref"].removeprefix("#/").split("/")
            part = functools.reduce(operator.getitem, names, self.document)
        return part

    def ask(self, method, path, body=None, expect=200, **names):
        """Asks, and compares status and answer with what is written down."""
        self.asked.add((method, path))
        operation = self.document["paths"][path][method.lower()]
        query = urllib.parse.urlencode({name: value for name, value in names.items() if f"{{{name}}}" not in path})
        status, answer = http(method, f"{self.plane.http}{path.format(**names)}?{query}", body)
        assert status == expect, (method, path, answer)
        if body is not None and status < 300:
            self.check(self.found(operation["requestBody"]), body)
        written = self.found(operation["responses"].get(str(status)) or operation["responses"]["default"])
        if "application/json" in written.get("content", {}):
            self.check(written, answer)
        return answer

    def validator(self, described):
        schema = described["content"]["application/json"]["schema"]
        # References of a part lead into the whole.
        whole = json.loads(json.dumps(schema).replace('"#/', '"urn:document#/'))
        return jsonschema.Draft202012Validator(whole, registry=self.registry)

    def check(self, described, value):
        self.validator(described).validate(value)

    def fits(self, described, value):
        return self.validator(described).is_valid(value)


@pytest.fixture
def contract(sim, plane):
    one = sim("--model", "llama", "--host-blocks", "256")
    served = plane(args=["--engine", f"vllm={one.events[0]},replay={one.replay[0]},id=e0,model=llama,http={one.http}"])
    served.wait_live("e0")
    one.complete(PROMPT, 1)
    served.wait_at(one.state()[1] - 1, "e0")
    return Contract(served)


def test_others_can_read_it(contract):
    OpenAPIV31SpecValidator(contract.document).validate()


def test_every_operation_says_who_may(contract):
    for path, item in contract.document["paths"].items():
        for method, operation in item.items():
            assert "security" in operation, (method, path)
            assert bool(operation["security"]) == ("x-kvplane-role" in operation), (method, path)


def test_parameters_in_a_body_are_those_that_are_described(contract):
    samples = {"number": 1, "boolean": True, "integer": 1, "string": "a", "array": ["a"]}
    taken = {"engine": ["e0"], "model": ["llama"], "kind": ["vllm"], "url": [contract.plane.http]}
    for path in ("/flush_cache", "/start_profile", "/stop_profile"):
        described = contract.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name, schema in described["properties"].items():
            value = taken.get(name, samples[schema["type"]])
            status, answer = http("POST", contract.plane.http + path, {"dry_run": True, name: value})
            # Nobody has that address, and that is all that is wrong.
            assert status == 200 or (name == "url" and "url" in answer["error"]["message"]), (path, name, answer)


def test_errors_that_no_operation_lists_have_the_same_shape(contract):
    for method, path in (("PUT", "/v1/query"), ("DELETE", "/healthz"), ("PUT", "/register")):
        status, answer = http(method, contract.plane.http + path)
        assert status == 405
        some = next(iter(contract.document["paths"][path].values()))
        contract.check(contract.found(some["responses"]["default"]), answer)
    for path in ("/flush_cache", "/start_profile", "/stop_profile"):
        contract.ask("POST", path, {"engine": ["x" * (100 << 10)]}, expect=400)
    contract.ask("DELETE", "/v1/engines/{id}", id="%FF", expect=400)
    contract.ask("GET", "/dashboard/{file}", file="%FF", expect=404)


def test_examples_of_the_reference_are_as_it_is_described(contract):
    page = (ROOT / "docs/reference/http.md").read_text()
    checked = set()
    for heading, section in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", page, re.MULTILINE):
        route = re.fullmatch(r"`(GET|POST) (/\S+)`", heading)
        if not route:
            continue
        method, path = route.groups()
        answers = contract.document["paths"][path][method.lower()]["responses"].values()
        schemas = [answer for answer in map(contract.found, answers) if "application/json" in answer.get("content", {})]
        blocks = re.findall(r"^```json\n(.*?)^```|^(\{.*\})$", section, re.MULTILINE | re.DOTALL)
        for example in ("".join(block) for block in blocks):
            if "…" in example:
                continue
            assert any(contract.fits(schema, json.loads(example)) for schema in schemas), (heading, example)
            checked.add(path)
    assert checked >= {"/v1/engines", "/v1/status", "/v1/query"}


def test_every_page_answers_as_it_is_described(contract):
    ask = contract.ask
    ask("GET", "/healthz")
    ask("GET", "/health")
    ask("GET", "/readyz")
    ask("GET", "/readyz", strict=1)
    ask("GET", "/")
    ask("GET", "/dashboard/{file}", file="main.js")
    ask("GET", "/dashboard/{file}", file="nothing.js", expect=404)
    ask("GET", "/metrics")
    ask("GET", "/openapi.json")
    assert ask("GET", "/v1/status")["engines"][0]["ranks"][0]["blocks"]["device"] > 0
    assert len(ask("GET", "/v1/engines")["engines"]) == 1
    ask("GET", "/v1/discover")
    dump = ask("GET", "/kv_recover")
    assert dump["TreeDump"]["events"]
    ask("GET", "/kv_recover", start=dump["TreeDump"]["last_event_id"])
    ask("GET", "/kv_recover", start=dump["TreeDump"]["last_event_id"] + 1)
    ask("GET", "/kv_recover", start=2, end=1)
    ask("GET", "/kv_recover", start="x", expect=400)
    ask("GET", "/kv_recover", engine="nobody", expect=404)
    assert ask("GET", "/dump")["llama:default"]["events"]
    assert ask("GET", "/workers")
    ask("GET", "/peers")
    ask("GET", "/snapshot")
    ask("GET", "/server_info")
    ask("GET", "/get_loads")
    ask("GET", "/get_loads", dry_run="true")
    ask("GET", "/get_loads", engine="nobody", expect=400)
    picked = ask("POST", "/v1/pick", {"model": "llama", "token_ids": PROMPT})
    assert ask("GET", "/v1/receipts/{id}", id=picked["id"])
    ask("GET", "/v1/receipts/{id}", id="00000000-1", expect=404)
    assert ask("GET", "/v1/receipts", worst=1)
    assert ask("GET", "/v1/history", engine="e0")["every_ms"] == 15000
    ask("GET", "/v1/history", engin="e0", expect=400)
    with urllib.request.urlopen(contract.plane.http + "/v1/watch", timeout=10) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.readline().startswith(b"event: ")
    gets = {(method.upper(), path) for path, item in contract.document["paths"].items() for method in item if method == "get"}
    assert gets - contract.asked == {("GET", "/v1/watch")}


def test_every_call_answers_as_it_is_described(contract):
    ask = contract.ask
    answer = ask("POST", "/v1/query", {"model": "llama", "token_ids": PROMPT, "groups": True})
    assert answer["best"] == [{"engine": "e0", "rank": 0}]
    ask("POST", "/v1/query", {"model": "nobody", "token_ids": PROMPT}, expect=400)
    ask("POST", "/v1/query", {"model": "llama", "token_ids": PROMPT, "multimodal": [{"id": "a", "offset": 3, "length": 4}]})
    ask("POST", "/v1/query", {"model": "llama", "block_hashes": [1, "-2"], "block_size": 16, "chained": True})
    ask("POST", "/query", {"model_name": "llama", "token_ids": PROMPT})
    ask("POST", "/query", {"model_name": "nobody", "token_ids": PROMPT}, expect=404)
    ask("POST", "/query_by_hash", {"model_name": "llama", "block_hashes": [1, 2]})
    picked = ask("POST", "/v1/pick", {"model": "llama", "token_ids": PROMPT, "output_tokens": 4})
    assert picked["endpoints"][0]["engine"] == "e0" and picked["booked"]
    ask("POST", "/v1/pick", {"model": "llama", "dry_run": True})
    ask("POST", "/v1/pick", {"model": "llama", "token_ids": PROMPT, "policy": "unheard_of"}, expect=400)
    ask("POST", "/v1/receipts/{id}", {"state": "first_token"}, id=picked["id"])
    delivered = {"state": "finish", "cached_tokens": picked["endpoints"][0]["cached_tokens"], "prompt_tokens": len(PROMPT)}
    ask("POST", "/v1/receipts/{id}", delivered, id=picked["id"])
    assert ask("GET", "/v1/receipts/{id}", id=picked["id"])
    ask("POST", "/v1/receipts/{id}", {}, id=picked["id"], expect=400)
    described = {"id": "e1", "kind": "vllm", "model": "llama", "events": "tcp://127.0.0.1:1"}
    ask("POST", "/v1/engines", described, expect=201)
    ask("POST", "/v1/engines", described, expect=409)
    ask("POST", "/v1/engines", {**described, "colour": "red"}, expect=400)
    # One that was never heard is in these too.
    ask("GET", "/v1/status")
    ask("GET", "/workers")
    ask("POST", "/v1/query", {"model": "llama", "token_ids": PROMPT})
    ask("DELETE", "/v1/engines/{id}", id="e1", expect=204)
    ask("DELETE", "/v1/engines/{id}", id="e1", expect=404)
    instance = {"instance_id": 7, "endpoint": "tcp://127.0.0.1:1", "model_name": "llama", "block_size": 16}
    ask("POST", "/register", instance, expect=201)
    ask("POST", "/register", instance, expect=409)
    ask("POST", "/unregister", {"instance_id": 7, "model_name": "llama"})
    ask("POST", "/unregister", {"instance_id": 7, "model_name": "llama"}, expect=404)
    ask("POST", "/register_peer", {"url": "http://a:1"}, expect=201)
    ask("POST", "/deregister_peer", {"url": "http://a:1"})
    ask("POST", "/reopen_logs")
    # The host tier keeps what it has, unless it is told.
    ask("POST", "/flush_cache", {"nudge": True, "proof_timeout_s": 20}, expect=502)
    ask("POST", "/flush_cache", {"nudge": True, "proof_timeout_s": 20, "reset_external": True})
    ask("POST", "/flush_cache", {"dry_run": True})
    ask("POST", "/flush_cache", {"colour": "red"}, expect=400)
    ask("POST", "/start_profile", {"num_steps": 1, "dry_run": True})
    ask("POST", "/stop_profile", {"dry_run": True})
    policy = {"version": 7, "policies": [{"namespace": "a", "eviction": "lfu"}], "tenants": [{"tenantID": "a", "maxIndexEntries": 5}]}
    ask("POST", "/policy", policy, expect=204)
    ask("PUT", "/policy", policy, expect=204)
    ask("PUT", "/policy", {"version": 2, "policies": []}, expect=400)
    ask("POST", "/probe", {"backend": "b", "model": "m", "hashScheme": "vllm"})
    ask("POST", "/probe", {"backend": "b"}, expect=400)
    calls = {(method.upper(), path) for path, item in contract.document["paths"].items() for method in item if method != "get"}
    assert calls <= contract.asked
