"""SMG's stock gateway in front of kvplane's fronts: where its own log says that it sends prompts, after every fault.

Engines are scripted: a gRPC server that answers, and pyzmq publishers that say what is cached. So what a prompt finds in
the gateway's index came over the events alone, and a hit on something that the engine does not have is a false one.
"""

import json
import random
import signal
from collections import Counter
from contextlib import closing

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2, vllm_engine_pb2_grpc

from harness.engine import Engine
from harness.plane import Plane, free_ports, http
from harness.smg import BLOCK, Gateway, RelayWorker, Worker, tokenizer
from harness.wait import eventually
from harness.wire import NEWEST as V

BLOCKS = 4
ASKED = 4  # how often what must not be found is looked for


class Prompt:
    """A prompt of four blocks that begins like no other."""

    made = 0

    def __init__(self):
        Prompt.made += 1
        self.tokens = random.Random(Prompt.made).choices(range(3, 2000), k=BLOCKS * BLOCK)
        self.hashes = [Prompt.made * 1000 + at for at in range(BLOCKS)]

    def stored(self):
        return V.stored(self.hashes, None, self.tokens, BLOCK)

    def removed(self):
        return V.removed(self.hashes)


def prompts(count):
    return [Prompt() for _ in range(count)]


class Stack:
    """Workers, their publishers, and a gateway before them."""

    def __init__(self):
        self.workers, self.gateway = [], None

    def finds(self, prompt, worker):
        """Whether the gateway finds all of a prompt at this worker."""
        return self.gateway.ask(prompt.tokens) == (self.addresses[worker], "event_hit", BLOCKS)

    def wait_found(self, prompt, worker, what):
        eventually(lambda: self.finds(prompt, worker), lambda: f"{what}\n{self.gateway.log()[-4000:]}", 30)

    def false_hits(self, *gone):
        """Hits on prompts that no engine has."""
        ways = [self.gateway.ask(prompt.tokens) for prompt in gone for _ in range(ASKED)]
        assert all(branch in ("event_hit", "event_miss") for _, branch, _ in ways), ways
        return sum(1 for _, branch, overlap in ways if branch == "event_hit" or overlap)

    def close(self):
        if self.gateway:
            self.gateway.close()
        for worker in self.workers:
            worker.close()


class Planes(Stack):
    """Two engines behind kvplane, the second of two ranks; one gateway for all tests."""

    def __init__(self, binary, folder, *options):
        super().__init__()
        self.options = options
        self.binary, self.config, self.plane = binary, folder / "kvplane.toml", None
        self.one = Engine()
        events, replay = free_ports(2, together=True), free_ports(2, together=True)
        self.ranks = [
            Engine(events=f"tcp://127.0.0.1:{events[rank]}", replay=f"tcp://127.0.0.1:{replay[rank]}", rank=rank) for rank in range(2)
        ]
        self.early = Prompt()
        self.keeper = Prompt()
        self.one.publish(self.early.stored())
        self.ranks[0].publish(self.keeper.stored())  # so that the index is never empty: without one there is no verdict
        words = tokenizer(folder / "tokenizer")
        self.workers = [Worker(words), Worker(words)]
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        engines = [(self.one, 1), (self.ranks[0], 2)]
        self.config.write_text("".join(
            f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nevents = "{engine.events}"\nreplay = "{engine.replay}"\nranks = {ranks}\n'
            f'grpc = "http://{self.workers[at].address}"\nfront = "{self.addresses[at]}"\n'
            for at, (engine, ranks) in enumerate(engines)
        ))

    def start(self):
        self.start_plane()
        self.plane.wait_at(0, "e0")
        self.plane.wait_at(0, "e1")
        self.plane.wait_live("e1", 1)
        self.gateway = Gateway(self.addresses)
        self.gateway.wait_ready(2)
        return self

    def start_plane(self):
        self.plane = Plane(self.binary, "--config", self.config, *self.options)

    def subscriptions(self, worker):
        return self.gateway.metric("smg_kv_event_subscriptions_total", worker=f"grpc://{self.addresses[worker]}")

    def close(self):
        super().close()
        for engine in [self.one, *self.ranks]:
            engine.kill()
        if self.plane:
            self.plane.close()


@pytest.fixture(scope="module")
def stack(binary, tmp_path_factory):
    with closing(Planes(binary, tmp_path_factory.mktemp("smg"))) as made:
        yield made.start()


def test_what_was_cached_before_anybody_listened(stack):
    """Late join: stored before kvplane started, and before the gateway did."""
    stack.wait_found(stack.early, 0, "the early prompt")
    assert stack.false_hits(Prompt()) == 0, "and not everything is a hit"
    # Half of it known: half of it found.
    half = stack.early.tokens[: 2 * BLOCK] + Prompt().tokens[: 2 * BLOCK]
    assert stack.gateway.ask(half) == (stack.addresses[0], "event_hit", 2)


def test_live_events_and_evictions(stack):
    first, second = prompts(2)
    stack.one.publish(first.stored(), second.stored())
    stack.wait_found(first, 0, "a stored prompt")
    stack.one.publish(first.removed())
    eventually(lambda: not stack.finds(first, 0), "an eviction")
    assert stack.false_hits(first) == 0
    assert stack.finds(second, 0)


def test_an_engine_that_restarted_and_overtook(stack):
    """The new life's numbers are past the cursor before anybody hears it: nothing in them tells."""
    gone, kept, new, last = prompts(4)
    stack.one.publish(gone.stored())
    stack.one.publish(kept.stored())
    stack.wait_found(kept, 0, "the old life")
    assert stack.finds(gone, 0)
    passed = stack.one.next_sequence + 20
    before = [[new.stored()], [kept.stored()], *([Prompt().stored()] for _ in range(passed))]
    stack.one = stack.one.restarted(before=before)
    assert stack.one.publish(last.stored()) > passed
    stack.wait_found(last, 0, "the new life")
    assert stack.false_hits(gone) == 0
    assert stack.finds(new, 0) and stack.finds(kept, 0), "what both lives have is found"


@pytest.mark.parametrize("in_ring", [True, False], ids=["replayed", "gone-for-good"])
def test_a_lost_batch_that_held_an_eviction(stack, in_ring):
    evicted, kept, later = prompts(3)
    stack.one.publish(evicted.stored(), kept.stored())
    stack.wait_found(evicted, 0, "before the loss")
    stack.one.publish(evicted.removed(), live=False, ring=in_ring)
    stack.one.publish(later.stored())
    stack.wait_found(later, 0, "after the loss")
    assert stack.false_hits(evicted) == 0
    if in_ring:
        assert stack.finds(kept, 0), "what was not lost is still found"
    else:
        # Dropped with the rest, until the engine builds on it.
        more = Prompt()
        stack.one.publish(V.stored(more.hashes, kept.hashes[-1], more.tokens, BLOCK))
        stack.wait_found(kept, 0, "what is proven again")
        assert stack.false_hits(evicted) == 0


def test_a_reconnection_of_the_same_process(stack):
    """What was cached is found all along, and the gateway need not start over."""
    kept, away = prompts(2)
    stack.one.publish(kept.stored())
    stack.wait_found(kept, 0, "before the reconnection")
    subscriptions = stack.subscriptions(0)
    stack.one.reconnect(while_away=lambda: stack.one.record(away.stored()))

    def look():
        assert stack.finds(kept, 0), "found all along"
        return stack.finds(away, 0)

    eventually(look, "what was stored meanwhile", 30)
    assert stack.subscriptions(0) == subscriptions


def test_one_of_two_ranks_restarts(stack):
    mine, gone, both, new = prompts(4)
    zero, one = stack.ranks
    zero.publish(mine.stored(), both.stored())
    one.publish(gone.stored(), both.stored(), rank=1)
    for prompt in (mine, gone, both):
        stack.wait_found(prompt, 1, "of either rank")
    before = [[Prompt().stored()] for _ in range(one.next_sequence + 20)]
    stack.ranks[1] = one.restarted(before=before)
    stack.ranks[1].publish(new.stored(), rank=1)
    stack.wait_found(new, 1, "the rank's new life")
    assert stack.false_hits(gone) == 0
    assert stack.finds(mine, 1) and stack.finds(both, 1) and stack.finds(stack.keeper, 1), "the other rank's stay"
    # The last copy goes with the other rank.
    zero.publish(both.removed())
    eventually(lambda: not stack.finds(both, 1), "the last copy")
    assert stack.false_hits(both) == 0


def test_an_engine_out_of_reach(binary, tmp_path):
    """What nobody can vouch for is not found; when the same process comes back, it is."""
    with closing(Planes(binary, tmp_path, "--set", "follow.down_after=300ms")) as stack:
        stack.start()
        stack.wait_found(stack.early, 0, "before")
        stack.one.reconnect(while_away=lambda: eventually(lambda: not stack.finds(stack.early, 0), "down"))
        stack.wait_found(stack.early, 0, "back")
        assert stack.finds(stack.keeper, 1), "the other engine was never away"


@pytest.mark.parametrize("engine", ["same-engine", "engine-restarts"])
def test_kvplane_restarts(stack, engine):
    kept, evicted, meanwhile, later = prompts(4)
    stack.one.publish(kept.stored(), evicted.stored())
    stack.wait_found(evicted, 0, "before")
    if engine == "same-engine":
        assert stack.plane.stop() == 0
        stack.one.publish(evicted.removed())
        stack.one.publish(meanwhile.stored())
    else:
        stack.plane.stop(signal.SIGKILL)
        before = [[kept.stored()], [meanwhile.stored()], *([Prompt().stored()] for _ in range(stack.one.next_sequence + 20))]
        stack.one = stack.one.restarted(before=before)
    stack.plane.close()
    stack.start_plane()
    stack.one.publish(later.stored())
    stack.gateway.wait_serving()
    stack.wait_found(later, 0, "after")
    assert stack.false_hits(evicted) == 0
    assert stack.finds(kept, 0) and stack.finds(meanwhile, 0)
    stack.wait_found(stack.keeper, 1, "the other engine's too")


def test_a_flush_of_the_gateways_is_proven_by_the_engines_own_events(stack):
    """`POST /flush_cache` of the gateway calls `FlushCache` on the fronts: the engines do it, and kvplane sees that they did."""
    old, new = prompts(2)
    stack.one.publish(old.stored())
    stack.wait_found(old, 0, "before")
    stack.workers[0].flush = lambda: stack.one.publish(V.cleared())
    stack.workers[1].flush = lambda: [engine.publish(V.cleared(), rank=rank) for rank, engine in enumerate(stack.ranks)]
    status, body = http("POST", f"{stack.gateway.url}/flush_cache")
    assert (status, body["workers_flushed"], body["total_grpc_workers"]) == (200, 2, 2), body
    assert stack.plane.held("e0") == set(), "nothing is left, and nothing waits to be seen"
    verdicts = [json.loads(line) for line in stack.plane.log().splitlines() if "kvplane::audit" in line]
    assert len(verdicts) == 2 and all("proven" in json.dumps(line) for line in verdicts), verdicts
    stack.one.publish(new.stored())
    stack.ranks[0].publish(stack.keeper.stored())
    stack.wait_found(new, 0, "after")
    assert stack.false_hits(old) == 0
    # An engine that says yes and does nothing: the gateway is told yes, as the engine said. Its old blocks count for nothing here.
    stack.workers[0].flush = lambda: None
    status, body = http("POST", f"{stack.gateway.url}/flush_cache")
    stack.ranks[0].publish(stack.keeper.stored())
    assert stack.plane.status("e0")["reason"] == "unproven_flush", (status, body)
    assert stack.false_hits(new) == 0
    stack.workers[0].flush = stack.workers[1].flush = None


class Cached:
    """What one publisher's cache holds for certain at least, and at most, in copies by (prompt, block)."""

    def __init__(self):
        self.least, self.most = Counter(), Counter()

    def store(self, keys):
        self.least.update(keys)
        self.most.update(keys)

    def remove(self, keys):
        for counts in (self.least, self.most):
            for key in keys:
                if counts[key] > 1:
                    counts[key] -= 1
                else:
                    counts.pop(key, None)

    def clear(self):
        self.least.clear()
        self.most.clear()


def leading(prompt, counts):
    """How many of a prompt's first blocks are held."""
    return next((at for at in range(BLOCKS) if not counts[prompt, at]), BLOCKS)


class Faults:
    """Random requests and faults at three publishers, with a model of what each holds."""

    def __init__(self, stack, seed):
        self.stack, self.dice, self.done = stack, random.Random(seed), []
        self.prompts = prompts(12)
        # Of every publisher: its cache.
        self.caches = {name: Cached() for name in ("one", "zero", "other")}

    def engine(self, name):
        return self.stack.one if name == "one" else self.stack.ranks[name == "other"]

    def events(self, name, cache=None):
        """What happens in an engine in one step, as events; the model follows."""
        cache, events = cache or self.caches[name], []
        for _ in range(self.dice.randrange(1, 4)):
            prompt = self.dice.choice(self.prompts)
            held = leading(prompt, cache.most)
            kind = self.dice.choice(["store", "store", "store", "copy", "evict", "hole"])
            if kind == "store" and held < BLOCKS:
                upto = self.dice.randrange(held + 1, BLOCKS + 1)
                keys = [(prompt, at) for at in range(held, upto)]
                tokens = prompt.tokens[held * BLOCK : upto * BLOCK]
                parent = prompt.hashes[held - 1] if held else None
                events.append(V.stored(prompt.hashes[held:upto], parent, tokens, BLOCK))
                cache.store(keys)
            elif kind == "copy" and held and cache.most[prompt, 0] < 3:
                events.append(V.stored(prompt.hashes[:1], None, prompt.tokens[:BLOCK], BLOCK))
                cache.store([(prompt, 0)])
            elif kind == "evict" and held:
                keys = [(prompt, held - 1)]
                events.append(V.removed([prompt.hashes[held - 1]]))
                cache.remove(keys)
            elif kind == "hole" and held > 1 and name == "one":
                # Ranks have none: what several ranks hold of a prompt together is no prefix of it then.
                events.append(V.removed([prompt.hashes[0]]))
                cache.remove([(prompt, 0)])
        if self.dice.random() < 0.03:
            events.append(V.cleared())
            cache.clear()
        return events

    def step(self):
        name = self.dice.choice(list(self.caches))
        engine, cache, rank = self.engine(name), self.caches[name], int(name == "other")
        fault = self.dice.choices(
            ["none", "drop", "twice", "reconnect", "restart", "overtake", "lose", "kvplane"], [8, 4, 2, 3, 2, 2, 1, 0.7]
        )[0]
        self.done.append((name, fault))
        if fault == "none":
            engine.publish(*self.events(name), rank=rank)
        elif fault == "drop":
            engine.publish(*self.events(name), live=False, rank=rank)
        elif fault == "twice":
            engine.publish(*self.events(name), copies=2, rank=rank)
        elif fault == "reconnect":
            engine.reconnect(while_away=lambda: engine.record(*self.events(name)))
        elif fault == "lose":
            engine.publish(*self.events(name), live=False, ring=False, rank=rank)
            cache.least.clear()
        elif fault == "kvplane":
            self.stack.plane.stop(self.dice.choice([signal.SIGTERM, signal.SIGKILL]))
            engine.publish(*self.events(name), rank=rank)
            self.stack.plane.close()
            self.stack.start_plane()
            self.stack.gateway.wait_serving()
        else:
            self.caches[name] = cache = Cached()
            count = engine.next_sequence + 5 if fault == "overtake" else self.dice.randrange(3)
            # The keeper is what every life of its rank begins with.
            before = [[self.stack.keeper.stored()]] if name == "zero" else []
            before += [self.events(name, cache) for _ in range(count)]
            new = engine.restarted(before=before)
            if name == "one":
                self.stack.one = new
            else:
                self.stack.ranks[rank] = new

    def check(self):
        """After a last store of every publisher is found, every prompt is found exactly as far as it is held."""
        for name in self.caches:
            last = Prompt()
            self.engine(name).publish(last.stored(), rank=int(name == "other"))
            self.stack.wait_found(last, int(name != "one"), f"the last of {name} after {self.done}")
        for prompt in self.prompts:
            worker, branch, overlap = self.stack.gateway.ask(prompt.tokens)
            least, most = ([leading(prompt, getattr(c, which)) for c in self.caches.values()] for which in ("least", "most"))
            what = f"{self.done}: prompt {prompt.hashes[0]}: {branch} {overlap} at {worker}, held {least} to {most}"
            assert max(least) <= overlap <= max(most), what
            assert branch == ("event_hit" if overlap else "event_miss"), what
            if overlap:
                at = self.stack.addresses.index(worker)
                assert overlap <= (most[0] if at == 0 else max(most[1:])), what


@pytest.mark.parametrize("seed", range(3))
def test_random_faults(stack, seed):
    faults = Faults(stack, seed)
    for _ in range(15):
        for _ in range(faults.dice.randrange(1, 5)):
            faults.step()
        faults.check()


# --- what else goes through a front --------------------------------------------------------------------------


def test_answers_pass_and_stream(stack):
    before = [len(worker.generated) for worker in stack.workers]
    tokens = Prompt().tokens
    status, whole = stack.gateway.complete(tokens)
    assert (status, whole["choices"][0]["text"]) == (200, "w3 w4 w5 w6")
    assert whole["usage"] == whole["usage"] | {"prompt_tokens": len(tokens), "completion_tokens": 4}
    status, streamed = stack.gateway.complete(tokens, stream=True)
    assert status == 200
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    texts = [choice["text"] for line in lines for choice in json.loads(line)["choices"]]
    assert len([text for text in texts if text]) == 4, "a piece for every token"
    assert "".join(texts).split() == ["w3", "w4", "w5", "w6"]
    generated = [prompt for worker, n in zip(stack.workers, before) for prompt in worker.generated[n:]]
    assert generated == [tokens, tokens]


def test_loads_reach_the_gateway(stack):
    """The engine's own stream has nothing but loads; its GetLoads says something else."""
    url = f"grpc://{stack.addresses[0]}"
    stack.workers[0].waiting = 3
    def told():
        loads = {load["worker"]: load for load in http("GET", stack.gateway.url + "/get_loads")[1]["loads"]}
        load = loads.get(url)  # it is listed once it has been polled
        return load and load["num_waiting_reqs"] == 3 and load["token_usage"] == 0.25
    try:
        eventually(told, lambda: str(http("GET", stack.gateway.url + "/get_loads")))
    finally:
        stack.workers[0].waiting = 0
    name = "smg_kv_event_batches_total"
    seen = stack.gateway.metric(name, worker=url, disposition="load_only")
    eventually(lambda: stack.gateway.metric(name, worker=url, disposition="load_only") > seen, "another load")


@pytest.mark.parametrize("call", ["GetModelInfo", "GetServerInfo", "HealthCheck", "GetLoads", "Abort", "Generate"])
def test_the_engines_own_calls_pass(stack, call):
    """Direct and through the front: the same answer, the same status."""
    pb = vllm_engine_pb2
    requests = {"Generate": pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[5, 6]), stream=True)}
    request = requests.get(call) or getattr(pb, f"{call}Request")()

    def answer(address):
        with grpc.insecure_channel(address) as channel:
            method = getattr(vllm_engine_pb2_grpc.VllmEngineStub(channel), call)
            try:
                got = method(request, timeout=10, metadata=[("x-tenant", "a"), ("x-raw-bin", b"\0\xff")])
                return [one.SerializeToString() for one in got] if call == "Generate" else got.SerializeToString()
            except grpc.RpcError as error:
                return error.code(), error.details()

    direct = answer(stack.workers[0].address)
    assert answer(stack.addresses[0]) == direct
    if call == "Abort":
        assert direct[0] == grpc.StatusCode.UNIMPLEMENTED
    if call == "Generate":
        assert len(direct) == 5
        straight, through = stack.workers[0].metadata[-2:]
        assert through["x-tenant"] == "a" and through["x-raw-bin"] == b"\0\xff"
        assert straight.keys() == through.keys()


def test_an_engines_grpc_server_restarts(stack):
    """Calls fail at once while it is away, and the events go on; then both are there again, and the loads too."""
    request = vllm_engine_pb2.HealthCheckRequest()
    worker, url = stack.workers[0], f"grpc://{stack.addresses[0]}"
    with grpc.insecure_channel(stack.addresses[0]) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        assert stub.HealthCheck(request, timeout=10).healthy
        blocks = stack.gateway.metric("smg_kv_index_blocks", worker=url)
        worker.close()
        with pytest.raises(grpc.RpcError) as failed:
            stub.HealthCheck(request, timeout=10)
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        stack.one.publish(Prompt().stored())
        eventually(lambda: stack.gateway.metric("smg_kv_index_blocks", worker=url) == blocks + BLOCKS, "events meanwhile")
        stack.workers[0] = Worker(worker.tokenizer_path, worker.address)
        assert stub.HealthCheck(request, timeout=10).healthy
    name = "smg_kv_event_batches_total"
    seen = stack.gateway.metric(name, worker=url, disposition="load_only")
    eventually(lambda: stack.gateway.metric(name, worker=url, disposition="load_only") > seen, "loads")
    stack.gateway.wait_serving()


# --- SMG's own relay in the same place -----------------------------------------------------------------------


class Relays(Stack):
    """The same two workers, with the relay that comes with SMG instead of kvplane."""

    def __init__(self, folder):
        super().__init__()
        self.one, self.other = Engine(synchronised=True), Engine(synchronised=True)
        self.early, self.keeper = prompts(2)
        self.one.publish(self.early.stored())
        words = tokenizer(folder / "tokenizer")
        self.workers = [RelayWorker(words, self.one), RelayWorker(words, self.other)]
        self.addresses = [worker.address for worker in self.workers]

    def start(self):
        self.gateway = Gateway(self.addresses)
        self.gateway.wait_ready(2)
        self.wait_subscribed()
        eventually(self.other.has_subscriber, "the relay's subscription")
        self.other.publish(self.keeper.stored())
        self.wait_found(self.keeper, 1, "the keeper")
        return self

    def wait_subscribed(self):
        eventually(self.one.has_subscriber, "the relay's subscription")

    def say_until_found(self, worker=0):
        """Stores prompts until one is found: a relay may be between two subscriptions."""
        def look():
            prompt = Prompt()
            self.one.publish(prompt.stored())
            try:
                return eventually(lambda: self.finds(prompt, worker), "found", 1)
            except AssertionError:
                return False
        eventually(look, lambda: f"anything new\n{self.gateway.log()[-3000:]}", 20)

    def close(self):
        super().close()
        self.one.kill()
        self.other.kill()


@pytest.fixture
def relays(tmp_path):
    with closing(Relays(tmp_path)) as made:
        yield made.start()


def test_report_of_smgs_own_relay(relays, report):
    """The same faults without kvplane. Nothing is asserted of what it does then: this says what it is."""
    report("SMG 1.13.0 with the Python relay of smg-grpc-servicer 0.14.1 (with kvplane in its place: asserted by the other tests)")
    found = [relays.finds(relays.early, 0) for _ in range(ASKED)]
    report(f"  late join: stored before the gateway subscribed: found {sum(found)}/{ASKED}")

    evicted, kept = prompts(2)
    relays.one.publish(evicted.stored(), kept.stored())
    relays.wait_found(kept, 0, "before the loss")
    relays.one.publish(evicted.removed(), live=False)
    relays.say_until_found()
    hits, still = relays.false_hits(evicted), relays.finds(kept, 0)
    report(f"  lost batch with an eviction, replay has it: false hits {hits}/{ASKED}, the rest is {'kept' if still else 'lost'}")

    evicted, kept = prompts(2)
    relays.one.publish(evicted.stored(), kept.stored())
    relays.wait_found(kept, 0, "before the loss")
    relays.one.publish(evicted.removed(), live=False, ring=False)
    relays.say_until_found()
    hits, still = relays.false_hits(evicted), relays.finds(kept, 0)
    report(f"  lost batch with an eviction, gone for good: false hits {hits}/{ASKED}, the rest is {'kept' if still else 'lost'}")

    gone, new = prompts(2)
    relays.one.publish(gone.stored())
    relays.wait_found(gone, 0, "the old life")
    before = [[new.stored()], *([Prompt().stored()] for _ in range(relays.one.next_sequence + 20))]
    relays.one = relays.one.restarted(before=before, synchronised=True)
    relays.wait_subscribed()
    relays.say_until_found()
    hits, early = relays.false_hits(gone), relays.finds(new, 0)
    report(
        f"  engine restart that overtook the cursor: false hits {hits}/{ASKED}, "
        f"what the new life stored before it was heard is {'found' if early else 'not found'}"
    )

    kept = Prompt()
    relays.one.publish(kept.stored())
    relays.wait_found(kept, 0, "before the restart of the gateway")
    relays.gateway.close()
    relays.gateway = Gateway(relays.addresses)
    relays.gateway.wait_ready(2)
    relays.wait_subscribed()
    relays.say_until_found()
    found = [relays.finds(kept, 0) for _ in range(ASKED)]
    report(f"  gateway restart: what was cached is found {sum(found)}/{ASKED}")
