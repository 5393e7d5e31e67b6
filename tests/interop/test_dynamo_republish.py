"""Dynamo's own indexer (1.6.1) listening to what kvplane publishes again: it holds what the engine holds, whenever it joins
and whatever happened before.
"""

import random
import signal

import msgspec
import pytest
import zmq

from harness.captures import Capture, events
from harness.dynamo import needs_dynamo
from harness.plane import Plane, free_ports, http
from harness.wait import eventually
from harness.wire import NEWEST as V

pytestmark = needs_dynamo
BLOCK = 4


@pytest.fixture
def republishing(binary, tmp_path):
    """Makes planes that publish an engine again, at ports that stay when a plane is started anew."""
    planes = []

    def make(engine, kind="vllm", ports=None, **republish):
        events, replay = (engine.events[0], engine.replay[0]) if isinstance(engine.events, list) else (engine.events, engine.replay)
        ports = ports or free_ports(2)
        words = {"events": f"tcp://127.0.0.1:{ports[0]}", "replay": f"tcp://127.0.0.1:{ports[1]}", **republish}
        inline = ", ".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in words.items())
        config = tmp_path / "kvplane.toml"
        config.write_text(
            f'[[engine]]\nid = "e"\nkind = "{kind}"\nmodel = "m"\nevents = "{events}"\nreplay = "{replay}"\n'
            f"republish = {{ {inline} }}\n"
        )
        plane = Plane(binary, "--config", config)
        planes.append(plane)
        plane.outlet = plane.logged("republishing")[0]
        plane.ports = ports
        return plane

    yield make
    for plane in planes:
        plane.close()


def held(indexer):
    return {hash for _, _, hash in indexer.blocks(7)}


def contents(indexer):
    """What Dynamo says that its blocks are."""
    return {hash: content for (_, _, hash), content in indexer.blocks(7).items()}


def dumped(plane):
    """What kvplane's dump in Dynamo's JSON says of the device's blocks."""
    held = {}
    for event in http("GET", f"{plane.http}/dump")[1]["m:default"]["events"]:
        data = event["event"]["data"]
        if event.get("storage_tier", "device") != "device":
            continue
        for block in data["stored"]["blocks"] if "stored" in data else ():
            held[block["block_hash"]] = block["tokens_hash"]
        for hash in data["removed"]["block_hashes"] if "removed" in data else ():
            held.pop(hash, None)
    return held


def wait_held(indexer, expected):
    """Waits until Dynamo holds these blocks."""
    expected = set(expected)

    def what():
        found = held(indexer)
        return f"{len(expected - found)} missing, {len(found - expected)} gone, of {len(expected)}"

    indexer.eventually(lambda: held(indexer) == expected, what)


def listen(indexer, plane):
    indexer.register(7, plane.outlet["events"], plane.outlet["replay"])
    indexer.eventually(lambda: indexer.workers()[0]["status"] == "active", "listening")


def stored(hashes, parent=None, **more):
    """Blocks that follow each other; their tokens say which they are."""
    tokens = [hash * BLOCK + at for hash in hashes for at in range(BLOCK)]
    return V.stored(hashes, parent=parent, tokens=tokens, block_size=BLOCK, **more)


def prompt(*hashes):
    return [hash * BLOCK + at for hash in hashes for at in range(BLOCK)]


def test_a_late_listener_asks_at_once(sim, republishing, dynamo_indexer):
    """No event follows its subscription: the newest batch, sent once more, shows it that it missed something."""
    s = sim("--block-size", BLOCK, "--blocks", 4096)
    plane = republishing(s)
    dice = random.Random(1)
    for _ in range(10):
        s.complete([dice.randrange(900) for _ in range(dice.randrange(8, 60))], 4)
    blocks, next_sequence = s.state()
    plane.wait_at(next_sequence - 1)
    late = dynamo_indexer(block_size=BLOCK)
    listen(late, plane)
    wait_held(late, blocks)
    s.complete([1] * 40, 4)
    wait_held(late, s.state()[0])


def test_kvplane_restarts(sim, republishing, dynamo_indexer):
    """While it is away the engine goes on; afterwards nothing else happens."""
    s = sim("--block-size", BLOCK, "--blocks", 48)
    plane = republishing(s)
    s.complete([1] * 60, 4)
    plane.wait_at(s.state()[1] - 1)
    one = dynamo_indexer(block_size=BLOCK)
    listen(one, plane)
    wait_held(one, s.state()[0])
    plane.stop(signal.SIGKILL)
    for n in range(2, 6):
        s.complete([n] * 60, 4)
    again = republishing(s, ports=plane.ports)
    again.wait_at(s.state()[1] - 1)
    wait_held(one, s.state()[0])


def test_stored_twice_and_removed_once(engine, republishing, dynamo_indexer):
    e = engine()
    plane = republishing(e)
    one = dynamo_indexer(block_size=BLOCK)
    listen(one, plane)
    chain = [11, 12, 13, 14, 15]
    e.publish(stored(chain))
    e.publish(stored(chain))
    e.publish(V.removed(chain))
    e.publish(stored([16]))
    wait_held(one, [*chain, 16])
    assert one.query(prompt(*chain)) == {(7, 0): len(chain) * BLOCK}
    e.publish(V.removed(chain))
    wait_held(one, [16])


def test_what_follows_a_filled_hole_counts_again(engine, republishing, dynamo_indexer):
    e = engine()
    plane = republishing(e)
    one = dynamo_indexer(block_size=BLOCK)
    listen(one, plane)
    chain = [21, 22, 23, 24, 25]
    e.publish(stored(chain))
    wait_held(one, chain)
    e.publish(V.removed([22]))
    one.eventually(lambda: one.query(prompt(*chain)) == {(7, 0): BLOCK}, "the hole")
    e.publish(stored([22], parent=21))
    one.eventually(lambda: one.query(prompt(*chain)) == {(7, 0): 5 * BLOCK}, lambda: f"whole: {one.query(prompt(*chain))}")


@pytest.mark.parametrize("profile", ["vllm", "sglang-0.5.18", "sglang-0.5.22"])
def test_salted_prompts(sim, republishing, dynamo_indexer, profile):
    kind = profile.split("-")[0]
    s = sim("--block-size", BLOCK, "--blocks", 4096, *(("--profile", profile) if kind == "sglang" else ()))
    plane = republishing(s, kind=kind)
    tokens = list(range(100, 140))
    s.complete(tokens, 1, cache_salt="tenant-a")
    plane.wait_at(s.state()[1] - 1)
    one = dynamo_indexer(block_size=BLOCK)
    listen(one, plane)
    asked = lambda **salt: one.query(tokens, **salt)
    one.eventually(lambda: asked(cache_salt="tenant-a") == {(7, 0): 40}, lambda: f"salted: {asked(cache_salt='tenant-a')}")
    assert not any(asked().values()), "an unsalted prompt"
    assert not any(asked(cache_salt="tenant-b").values())
    # Blocks that follow are told without their root.
    s.complete(tokens + list(range(200, 220)), 1, cache_salt="tenant-a")
    longer = tokens + list(range(200, 220))
    one.eventually(lambda: one.query(longer, cache_salt="tenant-a") == {(7, 0): 60}, "the rest")
    # kvplane's own answer to the same question, and the same hashes.
    body = {"token_ids": longer, "model_name": "m", "cache_salt": "tenant-a"}
    status, ours = http("POST", f"{plane.http}/query", body)
    assert (status, [n for ranks in ours["scores"].values() for n in ranks.values()]) == (200, [60])
    assert contents(one) == dumped(plane)


def test_captured_salts_arrive(engine, republishing, dynamo_indexer):
    """What a real SGLang sent, with salted and plain prompts: Dynamo holds each block in its own namespace."""
    capture = Capture("sglang-0.5.23")
    stores = [event for payload in capture.payloads for event in events(payload, typed=False) if type(event).__name__ == "BlockStored"]
    (size,) = {event.block_size for event in stores}
    salts = {salt for event in stores if (salt := getattr(event, "cache_salt", None))}
    assert salts, "the capture has salted prompts"
    e = engine(topic=capture.topic)
    plane = republishing(e, kind="sglang")
    one = dynamo_indexer(block_size=size)
    listen(one, plane)
    kinds = [{type(event).__name__ for event in events(payload, typed=False)} for payload in capture.payloads]
    # Until blocks are evicted, the salted ones among them.
    for payload in capture.payloads[: next(at for at, names in enumerate(kinds) if "BlockRemoved" in names)]:
        last = e.publish_payload(payload)
    plane.wait_at(last)
    ours = dumped(plane)
    one.eventually(lambda: contents(one) == ours, lambda: f"{len(contents(one))} of {len(ours)}")
    first_salted = [
        event for event in stores
        if event.parent_block_hash is None and getattr(event, "cache_salt", None) and event.block_hashes[0] % (1 << 64) in ours
    ]
    assert first_salted, "some are held"
    for event in first_salted:
        tokens = event.token_ids[:size]
        assert one.query(tokens, cache_salt=event.cache_salt) == {(7, 0): size}
        assert one.query(tokens, cache_salt="nobody's") == {}


def test_a_salt_that_dynamo_marked(engine, plane, dynamo_indexer):
    """The events of a vLLM under Dynamo, read by both: the same answers and the same hashes."""
    e = engine(synchronised=True)
    one = dynamo_indexer(block_size=BLOCK)
    one.register(7, e.events, e.replay)
    one.eventually(lambda: e.subscribers, "Dynamo is listening")
    p = plane(e, model="m", block_size=BLOCK)
    image = "0123456789abcdef" + "0" * 48
    keys = [["dynamo-cache-salt:tenant-a"], None]
    e.publish(stored([31, 32], extra_keys=keys))
    e.publish(stored([41, 42], extra_keys=[[[image, 2]], [[image, -2]]]))
    p.wait_at(e.publish(stored([51])))
    wait_held(one, [31, 32, 41, 42, 51])
    assert dumped(p) == contents(one)
    body = {"token_ids": prompt(31, 32), "model_name": "m"}
    for salt, expected in [({"cache_salt": "tenant-a"}, 8), ({}, 0)]:
        scores = http("POST", f"{p.http}/query", {**body, **salt})[1]["scores"]
        assert sum(n for ranks in scores.values() for n in ranks.values()) == expected
        assert sum(one.query(body["token_ids"], **salt).values()) == expected


class Deaf:
    """A listener that asks for nothing and looks at no number, as Dynamo's KvEventPublisher: by presence."""

    def __init__(self, context, events):
        self.held, self.clears = set(), 0
        self.sub = context.socket(zmq.SUB)
        self.sub.linger = 0
        self.sub.subscribe("")
        self.sub.connect(events)

    def pump(self):
        while self.sub.poll(0):
            for event in V.decode(self.sub.recv_multipart()[2]).events:
                match type(event).__name__:
                    case "AllBlocksCleared":
                        self.held, self.clears = set(), self.clears + 1
                    case "BlockStored":
                        self.held |= set(event.block_hashes)
                    case "BlockRemoved":
                        self.held -= set(event.block_hashes)
        return self.held

    def wait_held(self, sim):
        eventually(lambda: self.pump() == set(sim.state()[0]), lambda: f"{len(self.held)} of {len(sim.state()[0])}")


def test_a_listener_that_cannot_ask_is_told_the_state(sim, republishing):
    s = sim("--block-size", BLOCK, "--blocks", 512)
    plane = republishing(s, announce="state")
    dice = random.Random(3)
    load = lambda: [s.complete([dice.randrange(900) for _ in range(60)], 4) for _ in range(12)]
    load()
    plane.wait_at(s.state()[1] - 1)
    with zmq.Context() as context:
        first = Deaf(context, plane.outlet["events"])
        first.wait_held(s)
        assert first.clears == 1
        load()
        second = Deaf(context, plane.outlet["events"])
        for listener in (first, second):
            listener.wait_held(s)
        assert first.clears == 1, "the others are told nothing twice"
        s.fault(restart={})
        load()
        for listener in (first, second):
            listener.wait_held(s)
        plane.stop(signal.SIGKILL)
        load()
        again = republishing(s, ports=plane.ports, announce="state")
        again.wait_at(s.state()[1] - 1)
        for listener in (first, second):
            listener.wait_held(s)
        context.destroy(linger=0)


def test_dynamos_publisher_is_told_the_state(sim, republishing, dynamo_publisher):
    """A KvEventPublisher cannot ask: it joins late, and kvplane is killed meanwhile."""
    s = sim("--block-size", BLOCK, "--blocks", 48)
    plane = republishing(s, announce="state")
    s.complete([1] * 60, 4)
    plane.wait_at(s.state()[1] - 1)
    late = dynamo_publisher(plane.outlet["events"], BLOCK)

    def wait_equal():
        truth = lambda: set(s.state()[0])
        what = lambda: f"{len(truth() - late.held())} missing, {len(late.held() - truth())} gone"
        late.eventually(lambda: late.held() == truth(), what)

    wait_equal()
    s.complete([2] * 40, 4)
    wait_equal()
    plane.stop(signal.SIGKILL)
    for n in range(3, 6):
        s.complete([n] * 60, 4)
    again = republishing(s, ports=plane.ports, announce="state")
    again.wait_at(s.state()[1] - 1)
    wait_equal()
