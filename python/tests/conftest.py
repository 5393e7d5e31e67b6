"""Fixtures: a served plane and an engine to compare with, and how hypothesis looks for examples."""

import hypothesis
import pytest
from harness.engine import Engine
from harness.plane import Plane, find_binary

# The same examples in every run: what fails here fails everywhere.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(scope="session")
def binary():
    return find_binary()


@pytest.fixture
def served(binary):
    """Makes an engine that publishes over ZeroMQ, and a plane that records it under the name `e`."""
    made = []

    def make(topic="", software="vllm"):
        engine = Engine(topic=topic)
        made.append(engine.kill)
        topic = f",topic={topic}" if topic else ""
        plane = Plane(binary, "--engine", f"{software}={engine.events},replay={engine.replay},id=e{topic}")
        made.append(plane.close)
        return engine, plane

    yield make
    for close in reversed(made):
        close()
