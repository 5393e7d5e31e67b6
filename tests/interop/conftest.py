"""Fixtures: the binary, planes, engines and simulators that end with their test."""

import importlib
import subprocess
import sys

import pytest

from harness import hostile
from harness.dynamo import DynamoIndexer, DynamoPublisher
from harness.engine import Engine
from harness.inference_cache.server import Server
from harness.inference_cache.subscriber import Subscriber
from harness.metrics import Metrics
from harness.plane import ROOT, Plane, Report, Sim, find_binary


@pytest.fixture(scope="session")
def binary():
    return find_binary()


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """Makes Python code of a contract in proto/, now: the messages and, in the same module, the stub and the servicer."""
    out = tmp_path_factory.mktemp("stubs")
    sys.path.insert(0, str(out))

    def make(contract):
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}",
            f"--python_out={out}", f"--grpc_python_out={out}", str(ROOT / "proto" / f"{contract}.proto"),
        ]
        subprocess.run(command, check=True)
        importlib.invalidate_caches()
        module = contract.replace("/", ".")
        messages = importlib.import_module(f"{module}_pb2")
        for name, thing in vars(importlib.import_module(f"{module}_pb2_grpc")).items():
            if not name.startswith("_") and not hasattr(messages, name):
                setattr(messages, name, thing)
        return messages

    return make


@pytest.fixture(scope="session")
def stubs(generated):
    """Python code for kvplane.v1."""
    return generated("kvplane/v1/plane")


@pytest.fixture(scope="session")
def pb(generated):
    """Python code for inferencecache.v1alpha1."""
    return generated("inferencecache/v1alpha1/inferencecache")


class _Closing:
    def __init__(self, close):
        self.all = []
        self.close_one = close

    def add(self, thing):
        self.all.append(thing)
        return thing

    def close(self):
        errors = []
        for thing in reversed(self.all):
            try:
                self.close_one(thing)
            except AssertionError as error:
                errors.append(error)
        if errors:
            raise errors[0]


@pytest.fixture
def engine():
    """Makes Python engines."""
    made = _Closing(lambda engine: engine.kill())
    def make(*args, **options):
        return made.add(Engine(*args, **options))
    make.keep = made.add
    yield make
    made.close()


@pytest.fixture
def plane(binary):
    """Makes running planes, for engines or with arguments of their own."""
    made = _Closing(lambda plane: plane.close())

    def make(*engines, args=(), env=None, **options):
        words = list(args)
        for at, one in enumerate(engines):
            words += ["--engine", flag(one, at, **options)]
        return made.add(Plane(binary, *words, env=env))

    yield make
    made.close()


def flag(engine, at=0, **options):
    """--engine for a Python engine, a release's own publisher or a simulator."""
    options.setdefault("id", f"e{at}")
    if isinstance(engine, Sim):
        options.setdefault("ranks", 1)
        events, replay = engine.events[0], engine.replay[0]
    else:
        events, replay = engine.events, engine.replay if engine.has_replay else None
        if engine.topic:
            options.setdefault("topic", engine.topic.decode())
    if replay and replay != "off":
        options.setdefault("replay", replay)
    more = "".join(f",{key}={value}" for key, value in options.items() if value is not None)
    return f"{getattr(engine, 'software', 'vllm')}={events}{more}"


@pytest.fixture
def sim(binary):
    """Makes running simulators."""
    made = _Closing(lambda sim: sim.close())

    def make(*words, **options):
        return made.add(Sim(binary, *words, **options))

    yield make
    made.close()


@pytest.fixture
def metrics():
    """The metrics page of an engine."""
    server = Metrics(1_700_000_000.5)
    yield server
    server.close()


@pytest.fixture
def dynamo_indexer():
    """Makes running indexers of Dynamo's. Mark what uses it `needs_dynamo`."""
    made = _Closing(lambda indexer: indexer.close())

    def make(*words, **options):
        return made.add(DynamoIndexer(*words, **options))

    yield make
    made.close()


@pytest.fixture
def dynamo_publisher():
    """Makes running `KvEventPublisher`s. Mark what uses it `needs_dynamo`."""
    made = _Closing(lambda publisher: publisher.close())

    def make(*words, **options):
        return made.add(DynamoPublisher(*words, **options))

    yield make
    made.close()


@pytest.fixture
def reporter(binary):
    """Makes running `kvplane report`s: an engine, a server, and further words."""
    made = _Closing(lambda report: report.close())

    def make(engine, server, *words, **options):
        return made.add(Report(binary, engine, server, *words, **options))

    yield make
    made.close()


@pytest.fixture
def original_server(pb):
    """Makes servers that behave as inference-cache's does."""
    made = _Closing(lambda server: server.stop())

    def make(**options):
        return made.add(Server(pb, **options))

    yield make
    made.close()


@pytest.fixture
def original_subscriber(pb):
    """Makes subscribers that behave as inference-cache's does."""
    made = _Closing(lambda subscriber: subscriber.close())

    def make(engine, server, **options):
        return made.add(Subscriber(pb, engine, server, **options))

    yield make
    made.close()


_reports = []


@pytest.fixture
def report():
    """Says what software that we did not write does; printed at the end, and asserted nowhere."""
    return _reports.append


def pytest_sessionfinish(session):
    """A worker hands what it observed to the session that prints it."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["observed"] = _reports


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    _reports.extend(getattr(node, "workeroutput", {}).get("observed", []))


def pytest_terminal_summary(terminalreporter):
    if _reports:
        terminalreporter.section("observed, not asserted")
        for line in _reports:
            terminalreporter.write_line(line)
    if hostile.ROWS:
        terminalreporter.section("attacks, each with a good client beside it")
        for line in hostile.table():
            terminalreporter.write_line(line)
