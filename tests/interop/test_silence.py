"""A path that goes silent: nothing that is credited is older than `max_silence`.

An engine lives in a network namespace of its own, behind a wire that can be cut, or lose and delay packets, without a reset.
It is under traffic all the time, says itself what it holds, and is asked for at the plane every 20 ms. An answer that is
credited is right if the engine was in that state at some moment of the last `max_silence` + 200 ms.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.inference_cache.server import Server
from harness.netns import Net, missing
from harness.plane import Process
from harness.silence import ASK_EVERY, DOCUMENTS, FOLLOWER, MODEL, Answer, Engine, Plane, Watch, prompt, wrong
from harness.wait import eventually

pytestmark = pytest.mark.alone

MAX_SILENCE = 2.0  # the default
SLACK = 0.2
BOUND = MAX_SILENCE + SLACK


@pytest.fixture(scope="module", autouse=True)
def permitted():
    if reason := missing():
        pytest.skip(f"network namespaces: {reason}")


@pytest.fixture
def net():
    made = Net()
    yield made
    made.close()


class Site:
    """An engine behind a wire, a plane before it, and somebody who asks."""

    def __init__(self, binary, net, closing):
        self.binary, self.net, self.closing = binary, net, closing
        self.outside, inside = net.space("plane"), net.space("engine")
        self.wire = net.link(self.outside, inside)
        self.engine = closing(Engine(binary, inside, self.wire.addresses[1]))
        # Documents are known, and half of them are held.
        self.engine.serve(DOCUMENTS)

    def plane(self, space=None, **options):
        words = ["--engine", self.engine.flag(**options)]
        return self.closing(Plane(self.binary, space or self.outside, *words))

    def watch(self, plane, name="e0"):
        plane.wait_live(name)
        self.engine.busy.set()
        return self.closing(Watch(plane, self.engine, name))


@pytest.fixture
def site(binary, net):
    made = []

    def keep(thing):
        made.append(thing)
        return thing

    yield Site(binary, net, keep)
    for thing in reversed(made):
        thing.close()


def let(seconds):
    """Time during which things are observed; nothing is expected at its end."""
    time.sleep(seconds)


def credited(answers, since, until=float("inf")):
    return [answer for answer in answers if since <= answer.asked and answer.answered <= until and answer.trust]


def check(answers, truth, report, what, bound=BOUND):
    """No credited answer is older than the bound; ages are said and keep to it too."""
    worth = [answer for answer in answers if answer.trust]
    off = wrong(answers, truth, bound)
    report(f"silence: {what}: {len(answers)} answers, {len(worth)} credited, {len(off)} wrong")
    over = sum(1 for answer in off if answer.held)
    assert not off, f"{over} over-claims and {len(off) - over} under-claims of {len(worth)} credited; first {off[0]}"
    assert worth, "nothing was credited, so nothing was shown"
    assert all(answer.age is not None for answer in worth), "an answer does not say its age"
    assert max(answer.age for answer in worth) <= bound


def back(plane, name="e0"):
    """Waits until a stream is credited again."""
    return plane.wait_live(name)


@pytest.mark.parametrize("how", ["wire", "link"])
def test_a_silent_cut_under_traffic_is_noticed_within_the_bound(site, report, how):
    plane = site.plane(http=f"http://{site.engine.host}:8000")
    watch = site.watch(plane)
    let(1.0)
    cut = time.monotonic()
    site.wire.cut() if how == "wire" else site.wire.right.set_link(site.wire.ends[1], "down")
    let(BOUND + 2.0)
    seen = plane.stream("e0")
    healed = time.monotonic()
    site.wire.heal() if how == "wire" else site.wire.right.set_link(site.wire.ends[1], "up")
    back(plane)
    let(1.0)
    answers = watch.close()
    check(answers, site.engine.truth, report, f"cut ({how})")
    late = credited(answers, cut + BOUND, healed)
    assert not late, f"{len(late)} answers credited after the bound, the last {late[-1].asked - cut:.2f} s after the cut"
    assert seen["continuity"] == "recovering", seen
    assert seen["age_ms"] >= MAX_SILENCE * 1000


@pytest.mark.parametrize("replay", ["with replay", "without replay"])
def test_an_engine_that_dies_and_returns_behind_the_cut(site, report, replay):
    plane = site.plane(**({} if replay == "with replay" else {"replay": None}))
    watch = site.watch(plane)
    let(1.0)
    cut = time.monotonic()
    site.wire.cut()
    site.engine.kill()
    let(BOUND + 0.5)
    site.engine.start()
    let(1.0)
    healed = time.monotonic()
    site.wire.heal()
    back(plane)
    let(BOUND + 0.5)
    answers = watch.close()
    check(answers, site.engine.truth, report, f"killed behind the cut ({replay})")
    assert not credited(answers, cut + BOUND, healed)


def test_a_third_of_the_packets_lost_and_the_rest_late(site, report):
    plane = site.plane()
    watch = site.watch(plane)
    let(1.0)
    by = site.wire.impair(0.33, 0.1, 0.05)
    let(8.0)
    site.wire.heal()
    back(plane)
    let(1.0)
    check(watch.close(), site.engine.truth, report, f"33 % lost, 100 +- 50 ms ({by})")


def test_nothing_flaps_without_a_fault(site, report):
    plane = site.plane()
    plane.wait_live("e0")
    seen = []

    def observe(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen.append(plane.stream("e0"))
            let(0.1)

    observe(2 * BOUND)  # idle
    watch = site.watch(plane)
    observe(4.0)
    answers = watch.close()
    check(answers, site.engine.truth, report, "no fault")
    assert {stream["continuity"] for stream in seen} == {"live"}
    assert all(answer.trust == "exact" for answer in answers)
    report(f"silence: greatest age without a fault {max(stream['age_ms'] for stream in seen)} ms")


def test_a_bound_of_its_own(site, report):
    plane = site.plane(max_silence="1s")
    watch = site.watch(plane)
    let(1.0)
    cut = time.monotonic()
    site.wire.cut()
    let(1.0 + SLACK + 0.8)
    healed = time.monotonic()
    site.wire.heal()
    back(plane)
    answers = watch.close()
    check(answers, site.engine.truth, report, "max_silence = 1s", 1.0 + SLACK)
    assert not credited(answers, cut + 1.0 + SLACK, healed)


@pytest.mark.parametrize("where", ["between the planes", "before the engine"])
def test_the_bound_holds_over_a_link(site, net, report, where):
    far = net.space("far")
    between = net.link(site.outside, far)
    near = site.closing(
        Plane(site.binary, site.outside, "--insecure", "--engine", site.engine.flag(), grpc=f"{between.addresses[0]}:50090")
    )
    near.wait_live("e0")
    words = ["--engine", f"kvplane=http://{between.addresses[0]}:50090,id=site"]
    plane = site.closing(Plane(site.binary, far, *words))
    watch = site.watch(plane, "site/e0")
    let(1.0)
    wire = between if where == "between the planes" else site.wire
    cut = time.monotonic()
    wire.cut()
    let(BOUND + 1.0)
    healed = time.monotonic()
    wire.heal()
    back(plane, "site/e0")
    let(0.5)
    answers = watch.close()
    check(answers, site.engine.truth, report, f"over a link, cut {where}")
    late = credited(answers, cut + BOUND, healed)
    assert not late, f"{len(late)} answers credited after the bound, the last {late[-1].asked - cut:.2f} s after the cut"


def test_a_gateway_is_told_of_the_loss_within_the_bound(site, report):
    plane = site.plane()
    plane.wait_live("e0")
    words = site.outside.words(sys.executable, FOLLOWER, plane.grpc)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as follower:
        first = json.loads(follower.stdout.readline())
        assert "sequence" in first, first
        cut = time.monotonic()
        site.wire.cut()
        last = [json.loads(line) for line in follower.stdout][-1]
    assert last["end"] == "DATA_LOSS", last
    report(f"silence: a gateway's subscription ended {last['at'] - cut:.2f} s after the cut")
    assert last["at"] - cut <= BOUND




def test_reports_are_withdrawn_within_the_bound(site, pb, report):
    """What a server of inference-cache is told of a silent engine is taken back: it has no word for age."""
    server = site.outside.inside(lambda: Server(pb))
    try:
        whose = ("t", MODEL, "r")
        words = ["--engine-endpoint", site.engine.events, "--replay", site.engine.replay, "--server", server.address]
        words += ["--topic", "", "--window", "50ms", "--engine-metrics-url", "", "--metrics-listen", "127.0.0.1:0"]
        words += ["--tenant-id", whose[0], "--model-id", whose[1], "--replica-id", whose[2], "--log-format", "json"]
        site.closing(Process(*site.outside.words(site.binary, "report", *words)))
        eventually(lambda: server.held(whose), "the engine is reported", 30)
        site.engine.busy.set()
        let(1.0)
        cut = time.monotonic()
        site.wire.cut()
        eventually(lambda: not server.held(whose), "everything is withdrawn", 30)
        withdrawn = time.monotonic() - cut
        site.wire.heal()
        eventually(lambda: server.held(whose), "the engine is reported again", 30)
    finally:
        server.stop()
    report(f"silence: reports were withdrawn {withdrawn:.2f} s after the cut")
    assert withdrawn <= BOUND


def python_with_kvplane():
    """An interpreter that has the Python package: KVPLANE_PYTHON, or what `make python` has set up. None if there is none."""
    made = Path(__file__).resolve().parents[2] / ".venv-python" / "bin" / "python"
    for found in filter(None, [os.environ.get("KVPLANE_PYTHON"), made.exists() and str(made)]):
        if subprocess.run([found, "-c", "import kvplane"], cwd="/", check=False, capture_output=True).returncode == 0:
            return found
    return None


@pytest.mark.parametrize("where", ["before the client", "before the engine"])
def test_the_bound_holds_in_the_python_client(site, net, report, where, tmp_path):
    python = python_with_kvplane()
    if python is None:
        pytest.skip("the Python package is not installed: run `make python`, or name an interpreter that has it in KVPLANE_PYTHON")
    far = net.space("client")
    between = net.link(site.outside, far)
    plane = site.closing(
        Plane(site.binary, site.outside, "--insecure", "--engine", site.engine.flag(), grpc=f"{between.addresses[0]}:50090")
    )
    plane.wait_live("e0")
    site.engine.busy.set()
    script, how = Path(__file__).with_name("harness") / "python_client.py", {"model": MODEL, "prompts": [prompt(at) for at in range(DOCUMENTS)]}
    words = far.words(python, script, f"http://{between.addresses[0]}:50090", ASK_EVERY, json.dumps(how))
    wire = between if where == "before the client" else site.wire
    said = tmp_path / "answers"
    with said.open("w") as out, subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out) as client:
        eventually(said.read_text, "the client answers", 30)
        let(1.0)
        cut = time.monotonic()
        wire.cut()
        let(BOUND + 1.0)
        healed = time.monotonic()
        wire.heal()
        let(2.0)
        client.communicate(timeout=30)
    assert client.returncode == 0
    answers = [Answer(**json.loads(line)) for line in said.read_text().splitlines()]
    check(answers, site.engine.truth, report, f"in the Python client, cut {where}")
    late = credited(answers, cut + BOUND, healed)
    assert not late, f"{len(late)} answers credited after the bound, the last {late[-1].asked - cut:.2f} s after the cut"
