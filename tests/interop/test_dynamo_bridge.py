"""`python -m kvplane.dynamo`: Dynamo's own router and frontend (1.6.1), fed with what kvplane publishes again."""

import signal

import pytest

from harness.dynamo import needs_dynamo
from harness.dynamo_runtime import Frontend, Space
from harness.plane import Plane, free_ports
from harness.wait import eventually
from test_dynamo import Cache, Prompts

pytestmark = needs_dynamo

BLOCK = 4


@pytest.fixture
def space():
    one = Space(block_size=BLOCK)
    yield one
    one.close()


class Fed:
    """Two engines, a plane that publishes them again, two workers that publish nothing, and the bridge between."""

    def __init__(self, space, engine, binary, tmp_path):
        self.space, self.binary, self.prompts = space, binary, Prompts(5)
        self.engines, self.caches = [engine(), engine()], [Cache(0), Cache(1)]
        ports = free_ports(2)
        self.outlets = [f"tcp://127.0.0.1:{port}" for port in ports]
        self.config = tmp_path / "kvplane.toml"
        self.config.write_text("".join(self.described(at) for at in range(2)))
        self.plane = space.keep(Plane(binary, "--config", self.config))
        self.fleet = space.fleet()
        self.workers = [self.fleet.worker(token=100 + at) for at in range(2)]
        self.bridge = self.bridged()

    def described(self, at):
        e = self.engines[at]
        return (
            f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "{e.events}"\nreplay = "{e.replay}"\n'
            f'republish = {{ events = "{self.outlets[at]}", announce = "state" }}\n'
        )

    def bridged(self):
        return self.space.bridge(**{str(worker): outlet for worker, outlet in zip(self.workers, self.outlets)})

    def work(self, count):
        """Each engine computes prompts of its own, and forgets some."""
        for _ in range(count):
            at = self.prompts.random.randrange(2)
            self.engines[at].publish(*self.caches[at].stores(self.prompts.another()), *self.caches[at].removes(self.prompts.random.randrange(2)))

    def settled(self, router):
        """Waits until a router holds exactly what the engines hold."""
        def wrong():
            held = self.fleet.held(router)
            return {
                worker: (len(known - true), len(true - known))
                for worker, cache in zip(self.workers, self.caches)
                for known, true in [(set(held.get((worker, 0), {})), set(cache.parents))]
                if known != true
            }

        eventually(lambda: not wrong(), lambda: f"(gone, missing) by worker: {wrong()}\n{self.bridge.log()[-2000:]}", 20)

    def routed(self, router, count):
        """How many prompts go to a worker that holds most of them."""
        right = 0
        for prompt in self.prompts.asked(count):
            held = [cache.matched(prompt) for cache in self.caches]
            worker, _ = self.fleet.best(router, prompt)
            right += held[self.workers.index(worker)] == max(held)
        return right


@pytest.fixture
def fed(space, engine, binary, tmp_path):
    return Fed(space, engine, binary, tmp_path)


def test_a_router_that_is_there_and_one_that_comes_late(fed):
    fed.fleet.router("early", workers=2)
    fed.work(40)
    fed.settled("early")
    fed.fleet.router("late", workers=2)
    fed.settled("late")
    fed.work(10)
    for router in ("early", "late"):
        fed.settled(router)
        assert fed.routed(router, 30) == 30


def test_whoever_restarts_comes_back_whole(fed, engine):
    """The bridge, kvplane, and an engine whose new life overtakes the old one."""
    fed.fleet.router("r", workers=2)
    fed.work(30)
    fed.settled("r")
    fed.bridge.process.send_signal(signal.SIGTERM)
    assert fed.bridge.process.wait(timeout=20) == 0
    fed.work(5)
    fed.bridge = fed.bridged()
    fed.settled("r")
    fed.plane.process.kill()
    fed.plane.process.wait()
    fed.work(5)
    fed.plane = fed.space.keep(Plane(fed.binary, "--config", fed.config))
    fed.settled("r")
    before, fed.caches[0] = fed.engines[0].next_sequence, Cache(9)
    fed.engines[0] = engine.keep(fed.engines[0].restarted())
    for _ in range(before + 3):
        fed.engines[0].publish(*fed.caches[0].stores(fed.prompts.another()))
    fed.settled("r")


def test_the_frontend_routes_by_what_engines_hold(fed):
    """Requests through Dynamo's frontend, which comes last, reach the worker that holds their prompt."""
    fed.work(40)
    frontend = fed.space.keep(Frontend(fed.space))
    # Prompts that one worker holds as a whole, and the other not at all.
    chosen = []
    for prompt in fed.prompts.asked(600):
        held = [cache.matched(prompt) for cache in fed.caches]
        if min(held) == 0 and max(held) >= 2 and len(prompt) // BLOCK == max(held):
            chosen.append((prompt, f"w{100 + held.index(max(held))}"))
    assert len(chosen) >= 20
    # Blocks come to it one worker after the other.
    routed = lambda: [frontend.complete(prompt) for prompt, _ in chosen[:20]]  # noqa: E731
    frontend.eventually(lambda: routed() == [expected for _, expected in chosen[:20]], "every prompt is routed to its holder", 30)
