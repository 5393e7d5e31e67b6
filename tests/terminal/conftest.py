"""Fixtures: terminals, and a plane over simulated engines."""

import shutil
from contextlib import ExitStack, closing

import pytest

from harness.plane import Plane, Sim, find_binary, free_ports, http
from harness.wait import eventually
from terminal import Terminal

SIZES = [(80, 24), (140, 40)]


@pytest.fixture(scope="session", autouse=True)
def tmux():
    if not shutil.which("tmux"):
        pytest.skip("tmux is missing and could not be installed: apt-get install tmux", allow_module_level=True)


@pytest.fixture(scope="session")
def binary():
    return find_binary()


@pytest.fixture(params=SIZES, ids=lambda size: "{}x{}".format(*size))
def size(request):
    return request.param


@pytest.fixture
def terminal():
    with ExitStack() as stack:
        yield lambda size, *words, **options: stack.enter_context(closing(Terminal(*size, *words, **options)))


@pytest.fixture
def fleet(binary):
    """A plane over two simulated engines, and one that is not there."""
    with ExitStack() as stack:
        words = []
        for at in range(2):
            sim = stack.enter_context(closing(Sim(binary, "--load", 20, "--seed", at + 1)))
            words += ["--engine", f"vllm={sim.events[0]},replay={sim.replay[0]},id=engine-{at},http={sim.http},model=sim"]
        words += ["--engine", f"vllm=tcp://127.0.0.1:{free_ports(1)[0]},id=zz-sick,model=sim"]
        plane = stack.enter_context(closing(Plane(binary, *words)))
        # Both are live before anybody looks.
        heard = lambda: [rank["continuity"] for engine in plane.get("/v1/status")[1]["engines"] for rank in engine["ranks"]].count("live") == 2
        eventually(heard, "two live engines", 60.0)
        http("POST", f"{plane.http}/v1/query", {"model": "sim", "token_ids": list(range(64))})
        yield plane
