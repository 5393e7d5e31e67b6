"""The same requests to Dynamo's own indexer (1.6.1) and to kvplane in its place: status, shape and answers.

Values of answers must be equal; of refusals the status, and whether they are text or `{"error": words}`. What kvplane answers in
another way on purpose is in the table `OURS`, with its reason.
"""

import http.client
import json

from harness.dynamo import needs_dynamo
from harness.wait import eventually
from harness.wire import NEWEST as V

pytestmark = needs_dynamo

BIG = 9 << 20  # beyond what either takes
QUERY = {"token_ids": [1] * 8, "model_name": "m"}


def send(url, method, path, body=None, raw=None, kind="application/json"):
    """Status, the answer's kind (json, text, nothing), and the answer."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request(method, path, data, {"content-type": kind} if data is not None and kind else {})
        answer = connection.getresponse()
        text = answer.read()
        told = answer.getheader("content-type") or ""
        if told.startswith("application/json"):
            return answer.status, "json", json.loads(text) if text else None
        return answer.status, "text" if text else "nothing", text.decode()
    except (BrokenPipeError, ConnectionResetError):
        # Refused by its length, and closed before it was read.
        return 413, "text", ""
    finally:
        connection.close()


def post(name, path, body=None, **more):
    return (name, "POST", path, {"body": body, **more})


def get(name, path):
    return (name, "GET", path, {})


def register(events, **more):
    return {"instance_id": 7, "endpoint": events, "model_name": "m", "block_size": 4, **more}


def requests(events):
    r = lambda **more: register(events, **more)
    later = dict(instance_id=8, dp_rank=1)
    yield get("no workers yet", "/workers")
    yield post("ask before anybody is there", "/query", QUERY)
    yield post("register", "/register", r(tenant_id="t", additional_salt="s", anything=[{}]))
    yield post("register a rank twice", "/register", r())
    yield post("register for another model", "/register", r(dp_rank=1, model_name="other"))
    yield post("register with another block size", "/register", r(**later, block_size=8))
    yield post("register the largest id", "/register", r(instance_id=2**64 - 1))
    yield post("unregister the largest id", "/unregister", {"instance_id": 2**64 - 1, "model_name": "m"})
    for endpoint in ("nowhere", "", "tcp://a", "http://a:1"):
        yield post(f"register at {endpoint!r}", "/register", r(**later, endpoint=endpoint))
    for replay in ("", "nowhere"):
        yield post(f"register with replay {replay!r}", "/register", r(**later, replay_endpoint=replay))
    yield post("register without an address that can be dialled", "/register", r(**later, endpoint="inproc://x", model_name="x"))
    yield post("register a name without end", "/register", r(**later, model_name="x" * 1025))
    yield post("register with blocks of nothing", "/register", r(**later, block_size=0, model_name="zero"))
    for name, body in [
        ("little", {"instance_id": 1}), ("a negative id", r(instance_id=-1)), ("a huge id", r(instance_id=2**64)),
        ("an id as a word", r(instance_id="seven")), ("no group", r(routing_group=None)), ("a list", []), ("a number", 5),
        ("a negative rank", r(dp_rank=-1)), ("a block size as text", r(block_size="4")),
    ]:
        yield post(f"register {name}", "/register", body)
    yield post("register an id as text", "/register", r(**{**later, "instance_id": "9"}, model_name="text"))
    for name, raw in [("nothing", b""), ("half", b"{"), ("no JSON", b"\xff"), ("too much", b'{"x":"' + b"a" * BIG + b'"}')]:
        yield post(f"register {name}", "/register", raw=raw)
    yield post("register as text", "/register", raw=b"{}", kind="text/plain")
    yield post("register as nothing", "/register", raw=b"{}", kind=None)

    yield post("ask", "/query", QUERY)
    yield post("ask with more", "/query", {**QUERY, "lora_name": None, "cache_salt": None, "tenant_id": "x", "z": [{}]})
    yield post("ask for nothing", "/query", {**QUERY, "token_ids": []})
    yield post("ask with a salt", "/query", {**QUERY, "cache_salt": "s"})
    yield post("ask an unknown model", "/query", {**QUERY, "model_name": "?"})
    yield post("ask an unknown group", "/query", {**QUERY, "routing_group": "o"})
    for name, change in [
        ("no tokens", {"token_ids": None}), ("a negative token", {"token_ids": [-1]}), ("a fraction", {"token_ids": [1.5]}),
        ("a whole fraction", {"token_ids": [1.0]}), ("a wide token", {"token_ids": [2**32]}), ("text", {"token_ids": "x"}),
        ("a model number", {"model_name": 7}), ("no model", {"model_name": None}), ("no group", {"routing_group": None}),
        ("an adapter number", {"lora_name": 5}), ("a salt number", {"cache_salt": 5}), ("a tenant number", {"tenant_id": 5}),
        ("tokens as text", {"token_ids": ["1"] * 8}),
    ]:
        yield post(f"ask {name}", "/query", {**QUERY, **change})
    yield post("ask without tokens", "/query", {"model_name": "m"})
    yield post("ask without a model", "/query", {"token_ids": [1]})
    for name, raw in [
        ("nothing", b""), ("half", b"{"), ("a comma", b'{"token_ids":[1,],"model_name":"m"}'), ("a list", b"[]"), ("a number", b"5"),
        ("tokens twice", b'{"token_ids":[1],"token_ids":[1],"model_name":"m"}'), ("broken after the mistake", b'{"token_ids":"x",'),
        ("no JSON", b"\xff"), ("no comma", b'{"token_ids":[1] "model_name":"m"}'), ("half a null", b'{"token_ids":[nul],"model_name":"m"}'),
        ("a leading zero", b'{"token_ids":[01],"model_name":"m"}'), ("an exponent", b'{"model_name":"m","token_ids":[1e0]}'),
        ("too much", b'{"token_ids":[' + b"1," * BIG + b'1],"model_name":"m"}'), ("more behind it", b'{"token_ids":[1],"model_name":"m"}x'),
        ("the fields in a row", b'[[1,1,1,1],"m","default","t",null,null]'),
    ]:
        yield post(f"ask {name}", "/query", raw=raw)
    raw = json.dumps(QUERY).encode()
    yield post("ask as text", "/query", raw=raw, kind="text/plain")
    yield post("ask as other JSON", "/query", raw=raw, kind="application/foo+json; charset=utf-8")

    hashes = {"block_hashes": [1, -2], "model_name": "m"}
    yield post("ask by hash", "/query_by_hash", hashes)
    yield post("ask by hash without a salt", "/query_by_hash", {**hashes, "cache_salt": None})
    yield post("ask by hash with a salt", "/query_by_hash", {**hashes, "cache_salt": "s"})
    yield post("ask an unknown model by hash with a salt", "/query_by_hash", {**hashes, "model_name": "?", "cache_salt": "s"})
    yield post("ask by hash an unknown model", "/query_by_hash", {**hashes, "model_name": "?"})
    yield post("ask by hash a salt number", "/query_by_hash", {**hashes, "cache_salt": 5})
    yield post("ask by hash a fraction", "/query_by_hash", {**hashes, "block_hashes": [1.0]})
    yield post("ask without hashes", "/query_by_hash", {"model_name": "m"})
    yield post("ask by hash of 64 bits", "/query_by_hash", {**hashes, "block_hashes": [2**63]})

    yield get("workers of a model", "/workers?model_name=m&tenant_id=x")
    yield get("workers of an unknown model", "/workers?model_name=%3F")
    yield get("workers of two models", "/workers?model_name=a&model_name=b")
    yield get("a dump", "/dump")
    yield post("a peer", "/register_peer", {"url": "http://127.0.0.1:9"})
    yield post("a peer without an address", "/register_peer", {})
    yield post("a peer number", "/register_peer", {"url": 5})
    yield get("peers", "/peers")
    yield post("an unknown peer leaves", "/deregister_peer", {"url": "?"})
    yield post("a peer leaves", "/deregister_peer", {"url": "http://127.0.0.1:9"})
    yield get("health", "/health")
    yield post("logs", "/reopen_logs")
    yield post("unregister an unknown instance", "/unregister", {"instance_id": 99, "model_name": "m"})
    yield post("unregister for another model", "/unregister", {"instance_id": 7, "model_name": "other"})
    rank = {"instance_id": 7, "model_name": "m", "routing_group": "default"}
    yield post("unregister an unknown rank", "/unregister", {**rank, "dp_rank": 9})
    yield post("unregister nothing", "/unregister", {})
    yield post("unregister a rank", "/unregister", {**rank, "dp_rank": 0})
    yield post("unregister it again", "/unregister", rank)
    yield ("another method", "PUT", "/query", {"body": QUERY})
    yield get("another path", "/nowhere")


# What kvplane answers on purpose where Dynamo's indexer answers something else: status and kind.
OURS = {
    # An engine that nobody could ever hear, and blocks that no prompt could fill: Dynamo takes both.
    "register without an address that can be dialled": (400, "json"),
    "register with blocks of nothing": (400, "json"),
    # Names are kept as often as there are ranks.
    "register a name without end": (400, "json"),
    # Writers whose numbers are floats cannot write 64 bits: kvplane reads text too.
    "register an id as text": (201, "json"),
    "ask tokens as text": (200, "json"),
    # The same 64 bits without a sign.
    "ask by hash of 64 bits": (200, "json"),
    # Half a request that looks whole.
    "ask more behind it": (400, "text"),
    "ask the fields in a row": (422, "text"),
    # Errors of the server as a whole have kvplane's shape.
    "another method": (405, "json"),
    "another path": (404, "json"),
}


def test_the_same_requests_get_the_same_answers(engine, plane, dynamo_indexer):
    held = engine()
    ours, theirs = plane(), dynamo_indexer()
    different, seen = [], set()
    for name, method, path, options in requests(held.events):
        mine = send(ours.http, method, path, **options)
        other = send(theirs.http, method, path, **options)
        seen.add(name)
        if name in OURS:
            assert mine[:2] == OURS[name], (name, mine)
            assert mine[:2] != other[:2], f"{name} is no difference any more: {mine}"
        elif not is_same(path, mine, other):
            different.append((name, mine, other))
        if name in OURS and path == "/register":
            # What one of them took is taken back, so that both go on alike.
            for url in (ours.http, theirs.http):
                send(url, "POST", "/unregister", {"instance_id": int(options["body"]["instance_id"]), "model_name": options["body"]["model_name"]})
        if name == "register":
            settle(held, ours, theirs)
    assert not different, "\n".join(f"{name}\n  kvplane {mine}\n  Dynamo  {other}" for name, mine, other in different)
    assert seen >= set(OURS)


def settle(held, ours, theirs):
    """Both hold the same blocks: they are told until both have heard."""

    def same():
        held.publish(V.stored([1, 2], None, [1] * 8, 4), V.stored([3], 2, [1] * 4, 4))
        mine, other = (send(url, "POST", "/query", {**QUERY, "token_ids": [1] * 12}) for url in (ours.http, theirs.http))
        return mine == other and mine[2]["scores"] == {"7": {"0": 12}}

    eventually(same, "both hold three blocks")


def is_same(path, mine, other):
    if mine[:2] != other[:2]:
        return False
    if mine[1] != "json" or mine[0] >= 400:
        return mine[1] != "json" or keys(mine[2]) == keys(other[2]) == {"error"}
    if path.startswith("/dump"):
        return dumped(mine[2]) == dumped(other[2])
    return mine[2] == other[2]


def keys(answer):
    return set(answer) if isinstance(answer, dict) else type(answer)


def dumped(answer):
    """A dump without its numbers, which mean nothing."""
    return {
        key: (part["block_size"], [{**event, "event": {**event["event"], "event_id": 0}} for event in part["events"]])
        for key, part in answer.items()
    }
