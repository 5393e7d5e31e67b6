"""kvplane among Dynamo's own programs (1.6.1 from PyPI): its mocker, router, indexer, selection service, frontend and publisher."""

import random
import time

import pytest

from harness.dynamo import needs_dynamo
from harness.dynamo_runtime import Mocker, SelectService, Space
from harness.plane import Plane, free_ports, http
from harness.wait import eventually
from harness.wire import NEWEST as V

pytestmark = needs_dynamo


@pytest.fixture
def space():
    """Makes spaces in which Dynamo's programs find each other."""
    made = []

    def make(**options):
        made.append(Space(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def register(plane, instance, events, replay=None, block_size=4, **more):
    body = {"instance_id": instance, "endpoint": events, "replay_endpoint": replay, "model_name": "m", "block_size": block_size}
    status, answer = http("POST", plane.http + "/register", {**body, **more})
    assert status == 201, answer


def query(plane, tokens, **more):
    """Tokens on the device by (instance, rank)."""
    status, answer = http("POST", plane.http + "/query", {"token_ids": tokens, "model_name": "m", **more})
    assert status == 200, answer
    return {(int(i), int(r)): n for i, ranks in answer["scores"].items() for r, n in ranks.items()}


def held(plane):
    """What kvplane dumps: {(instance, rank): {block hash: tokens hash}}."""
    found = {}
    for event in plane.get("/dump")[1].get("m:default", {"events": []})["events"]:
        blocks = found.setdefault((event["worker_id"], event["event"]["dp_rank"]), {})
        blocks.update({b["block_hash"]: b["tokens_hash"] for b in event["event"]["data"]["stored"]["blocks"]})
    return found


class Prompts:
    """Prompts that share beginnings, as blocks of an engine that hashes them by their content."""

    def __init__(self, seed, block=4):
        self.random, self.block, self.made = random.Random(seed), block, []

    def another(self, longest=8):
        begin = []
        if self.made and self.random.random() < 0.6:
            begin = self.random.choice(self.made)
            begin = begin[: self.random.randrange(len(begin)) // self.block * self.block]
        rest = self.random.randrange(1, longest + 1) * self.block
        self.made.append(begin + [self.random.randrange(10, 1900) for _ in range(rest)])
        return self.made[-1]

    def asked(self, count):
        """Prompts that were made, some cut off, some that go on."""
        for _ in range(count):
            prompt = self.random.choice(self.made)
            yield prompt[: self.random.randrange(1, len(prompt) + 1)] + [5] * self.random.randrange(0, 9)


class Cache:
    """What an engine holds: it stores prompts block by block and removes leaves, and says so in batches."""

    def __init__(self, seed):
        self.random, self.parents, self.tokens, self.ids = random.Random(seed), {}, {}, {}

    def stores(self, prompt, block=4):
        """The events by which a prompt becomes resident."""
        events, parent = [], None
        for end in range(block, len(prompt) + 1, block):
            key = tuple(prompt[:end])
            # The engine's own hashes: the same prefix always has the same.
            hash = self.ids.setdefault(key, hash_of(key))
            if hash not in self.parents:
                events.append(V.stored([hash], parent, prompt[end - block : end], block))
                self.parents[hash], self.tokens[hash] = parent, key
            parent = hash
        return events

    def removes(self, count):
        """The event by which some leaves go."""
        gone = []
        for _ in range(count):
            leaves = sorted(set(self.parents) - set(self.parents.values()))
            if leaves:
                gone.append(self.random.choice(leaves))
                del self.parents[gone[-1]]
        return [V.removed(gone)] if gone else []

    def matched(self, prompt, block=4):
        """How many blocks of a prompt are held."""
        count = 0
        while (count + 1) * block <= len(prompt) and self.ids.get(tuple(prompt[: (count + 1) * block])) in self.parents:
            count += 1
        return count


def hash_of(key):
    return random.Random(repr(key)).getrandbits(63)


# --- engines -------------------------------------------------------------------------------------------------


def test_the_mocker_is_heard_and_answers_equal_the_routers(plane, space):
    """Two simulated engines of Dynamo's; blocks and 200 answers are those of Dynamo's own router, fed by its own publishers."""
    own, block = space(endpoint="dynamo.backend.generate", block_size=16), 16
    mocker, fleet, p = own.keep(Mocker(own)), own.fleet(), plane()
    workers = fleet.router("r", workers=2)
    for at, (events, replay) in enumerate(zip(mocker.events, mocker.replay)):
        register(p, at, events, replay, block)
    prompts, warm = Prompts(1, block), []
    # Dynamo's own way drops what is published before everybody is connected: it is warm when it shows a prompt.
    for worker in workers:
        def is_warm():
            warm.append([2, *(random.randrange(10, 1900) for _ in range(block - 1))])
            fleet.ask("generate", name="r", tokens=warm[-1], worker=worker)
            return (worker, 0) in fleet.scores("r", warm[-1])

        eventually(is_warm, f"the router hears worker {worker}")
    for at in range(60):
        fleet.ask("generate", name="r", tokens=prompts.another(), worker=workers[at % 2])

    def same():
        """Which instance here is which worker there: those with the same blocks, but for what warmed them."""
        mine, theirs = held(p), fleet.held("r")
        if len(mine) != 2 or len(theirs) != 2:
            return None
        pairs = {here: there for here, blocks in mine.items() for there, known in theirs.items() if known.items() <= blocks.items()}
        lost = sum(len(blocks) for blocks in mine.values()) - sum(len(blocks) for blocks in theirs.values())
        return pairs if len(set(pairs.values())) == 2 and lost <= len(warm) else None

    pairs = eventually(same, lambda: f"equal blocks: {({k: len(v) for k, v in held(p).items()}, {k: len(v) for k, v in fleet.held('r').items()})}", 30)
    for prompt in prompts.asked(200):
        mine = {pairs[key]: tokens // block for key, tokens in query(p, prompt).items()}
        assert mine == fleet.scores("r", prompt), prompt


# --- indexers ------------------------------------------------------------------------------------------------


def test_dynamos_indexer_recovers_from_kvplane(engine, plane, dynamo_indexer):
    """An engine's ring has turned over: Dynamo's indexer takes what is gone from it from kvplane, its peer, and answers alike."""
    prompts, cache = Prompts(2), Cache(2)
    e = engine(buffer_steps=5)
    p = plane()
    register(p, 7, e.events, e.replay)
    p.wait_live("instance-7")
    for _ in range(60):
        e.publish(*cache.stores(prompts.another()), *cache.removes(1))
    p.wait_at(59, "instance-7")
    alone = dynamo_indexer()
    alone.register(7, e.events, e.replay)
    theirs = dynamo_indexer(peers=[p.http])
    theirs.eventually(lambda: theirs.blocks(), "the dump of its peer")
    assert theirs.blocks() == {(7, 0, hash): content for hash, content in held(p)[7, 0].items()}
    theirs.register(7, e.events, e.replay)
    for prompt in prompts.asked(200):
        expected = cache.matched(prompt) * 4
        assert query(p, prompt).get((7, 0), 0) == expected == theirs.query(prompt).get((7, 0), 0), prompt


def test_a_peer_that_can_send_no_token_is_admitted_by_its_network(engine, plane, dynamo_indexer, tmp_path):
    """With keys a peer of Dynamo's gets 401; the network that it is in is named, and it recovers."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    keys = ["--set", "auth.token.0.name=a", "--set", "auth.token.0.role=admin", "--set", f"auth.token.0.file={token}"]
    e = engine(before=[[V.stored([1, 2], None, [1] * 8, 4)]])
    named = ["--engine", f"vllm={e.events},replay={e.replay},model=m,block_size=4,worker_id=18446744073709551615"]
    closed = plane(args=[*keys, *named])
    refused = http("GET", closed.http + "/dump")
    assert refused[0] == 401 and refused[1]["error"]["code"] == "unauthenticated"
    p = plane(args=[*keys, *named, "--set", 'indexer.open_read=["127.0.0.0/8"]', "--set", "indexer.metrics=true"])
    eventually(lambda: http("GET", p.http + "/dump")[1].get("m:default", {}).get("events"), "the engine is heard")
    theirs = dynamo_indexer(peers=[p.http])
    theirs.eventually(lambda: theirs.blocks(), "the dump of its peer")
    assert set(theirs.blocks()) == {(2**64 - 1, 0, 1), (2**64 - 1, 0, 2)}
    register_it = {"instance_id": 1, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4}
    assert http("POST", p.http + "/register", register_it)[0] == 403
    for closed_path in ("/v1/status", "/metrics", "/kv_recover", "/v1/engines"):
        assert http("GET", p.http + closed_path)[0] == 401, closed_path


def test_dynamos_selection_service_recovers_from_kvplane(engine, plane, space):
    e = engine(before=[[V.stored([1, 2, 3], None, [1] * 12, 4)]])
    p = plane()
    register(p, 7, e.events, e.replay)
    p.wait_at(0, "instance-7")
    own = space()
    service = own.keep(SelectService(own, peers=[p.http]))

    def scored():
        try:
            status, answer = http("POST", service.http + "/overlap_scores", {"model_name": "m", "token_ids": [1] * 16})
        except OSError:
            return None
        return status == 200 and answer

    def recovered():
        try:
            dump = http("GET", service.http + "/dump")[1]
        except OSError:
            return None
        blocks = [b["block_hash"] for part in dump.values() for event in part["events"] for b in event["event"]["data"]["stored"]["blocks"]]
        return sorted(blocks) == [1, 2, 3]

    service.eventually(recovered, lambda: f"the dump of its peer; {scored()}", 20)


# --- faults: what Dynamo's indexer believes alone, and behind kvplane -----------------------------------------


WARM = 1


class Believers:
    """One engine, heard by Dynamo's indexer alone, by kvplane, and by Dynamo's indexer behind kvplane."""

    def __init__(self, engine, binary, dynamo_indexer, tmp_path, has_replay=True):
        self.make, self.binary = engine, binary
        self.engine, self.cache, self.prompts = engine(has_replay=has_replay), Cache(3), Prompts(3)
        events, replay = free_ports(2)
        self.outlet, self.again = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
        asked = f'replay = "{self.engine.replay}"\n' if has_replay else ""
        self.config = tmp_path / "kvplane.toml"
        self.config.write_text(
            f'[[engine]]\nid = "e"\nkind = "vllm"\nmodel = "m"\nblock_size = 4\nworker_id = 7\nevents = "{self.engine.events}"\n{asked}'
            f'republish = {{ events = "{self.outlet}", replay = "{self.again}" }}\n'
        )
        self.planes = []
        self.serve()
        self.alone, self.behind = dynamo_indexer(), dynamo_indexer()
        self.alone.register(7, self.engine.events, self.engine.replay if has_replay else None)
        self.behind.register(7, self.outlet, self.again)
        # Everybody listens once everybody knows a block that is no part of what follows.
        def heard():
            self.engine.publish(V.stored([WARM], None, [1] * 4, 4))
            return all(WARM in {hash for *_, hash in indexer.blocks(7)} for indexer in (self.alone, self.behind))

        eventually(heard, "both indexers hear")

    def serve(self):
        self.planes.append(Plane(self.binary, "--config", self.config))
        self.plane = self.planes[-1]
        self.plane.wait_live("e")

    def publish(self, stores=True, **how):
        events = self.cache.stores(self.prompts.another()) if stores else []
        return self.engine.publish(*events, *self.cache.removes(2), **how)

    @staticmethod
    def believed(indexer):
        return {hash for _, _, hash in indexer.blocks(7)} - {WARM}

    def wrong(self, believed):
        """Blocks that are believed and gone, and blocks that are held and missing."""
        true = set(self.cache.parents)
        return len(believed - true), len(true - believed)

    def settle(self):
        """Waits until kvplane has read everything, and its listener believes what it published. Returns what is wrong: alone, kvplane,
        behind it."""
        last = self.engine.next_sequence - 1
        self.plane.wait_at(last, "e", deadline=30)

        def ours():
            return set(held(self.plane).get((7, 0), {})) - {WARM}

        self.behind.eventually(lambda: self.believed(self.behind) == ours(), lambda: f"the listener follows: {self.wrong(self.believed(self.behind))}, kvplane {self.wrong(ours())}", 20)
        # Nothing tells when the one that is alone has read everything: it has two seconds to be right.
        end = time.monotonic() + 2
        while (alone := self.wrong(self.believed(self.alone))) != (0, 0) and time.monotonic() < end:
            time.sleep(0.05)
        return alone, self.wrong(ours()), self.wrong(self.believed(self.behind))

    def close(self):
        for one in self.planes:
            one.close()


@pytest.fixture
def believers(engine, binary, dynamo_indexer, tmp_path):
    made = []

    def make(**options):
        made.append(Believers(engine, binary, dynamo_indexer, tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_restart_that_overtakes(believers, report):
    b = believers()
    for _ in range(30):
        b.publish()
    b.settle()
    assert b.engine.next_sequence < 60
    b.cache = Cache(4)
    b.engine = b.make.keep(b.engine.restarted())
    for _ in range(60):
        b.publish()
    alone, ours, behind = b.settle()
    report(f"restart that overtakes: Dynamo's indexer alone (gone, missing) {alone}, kvplane {ours}, behind kvplane {behind}, of {len(b.cache.parents)}")
    assert ours == behind == (0, 0)


def test_lost_frames_that_can_be_asked_for(believers, report):
    b = believers()
    for at in range(30):
        b.publish(live=at % 5 != 4)
    b.publish()
    alone, ours, behind = b.settle()
    report(f"lost frames, with replay: Dynamo's indexer alone (gone, missing) {alone}, kvplane {ours}, behind kvplane {behind}, of {len(b.cache.parents)}")
    assert ours == behind == (0, 0)


def test_lost_removals_that_nobody_can_ask_for(believers, report):
    """Without a replay socket what is lost is lost: kvplane forgets what may be gone, and believes nothing that is not there."""
    b = believers(has_replay=False)
    for at in range(30):
        b.publish(live=at % 5 != 4)
    b.publish()
    alone, ours, behind = b.settle()
    report(f"lost frames, without replay: Dynamo's indexer alone (gone, missing) {alone}, kvplane {ours}, behind kvplane {behind}, of {len(b.cache.parents)}")
    assert ours[0] == behind[0] == 0


def test_kvplane_is_killed_and_comes_back(believers, report):
    b = believers()
    for _ in range(20):
        b.publish()
    b.settle()
    b.plane.process.kill()
    b.plane.process.wait()
    for _ in range(20):
        b.publish()
    b.serve()
    # A listener that asks only when it sees a gap needs something to see.
    b.behind.eventually(lambda: b.wrong(b.believed(b.behind)) == (0, 0) or b.engine.publish() < 0, "the listener is back", 20)
    alone, ours, behind = b.settle()
    report(f"kvplane killed: Dynamo's indexer alone (gone, missing) {alone}, kvplane {ours}, behind kvplane {behind}, of {len(b.cache.parents)}")
    assert ours == behind == (0, 0)
