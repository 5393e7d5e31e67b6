"""An engine behind a wire, what it held at every moment, and planes that are asked all the time what it holds."""

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from .netns import Caller, port_of
from .plane import Process
from .wait import eventually

MODEL = "m"
BLOCK = 16
HELD = 100  # blocks that the engine has
DOCUMENTS = 240  # prompts of one block, asked for in turn: each is held for some seconds, and then not for some
PACE = 0.04
ASK_EVERY = 0.02


def prompt(document):
    """One block, and the token that an engine always computes itself."""
    return [1000 + document] * (BLOCK + 1)


class Truth:
    """What an engine held, and when: states follow each other, and change while a request runs."""

    def __init__(self):
        self.lock = threading.Lock()
        self.states = []  # (when the change to it began, when it was over, documents)

    def record(self, began, documents):
        with self.lock:
            self.states.append((began, time.monotonic(), frozenset(documents)))

    def between(self, since, until):
        """Every state that there was in this time."""
        with self.lock:
            states = list(self.states)
        found = []
        for at, (began, _, documents) in enumerate(states):
            left = states[at + 1][1] if at + 1 < len(states) else float("inf")
            if began <= until and left >= since:
                found.append(documents)
        return found


class Engine:
    """A simulated engine in a namespace, under traffic that nobody can cut, as it comes from inside."""

    def __init__(self, binary, space, host, pace=PACE):
        self.binary, self.space, self.host, self.pace = binary, space, host, pace
        self.truth, self.hashes, self.document = Truth(), {}, 0
        self.lock, self.process, self.caller = threading.Lock(), None, None
        self.busy, self.ended = threading.Event(), threading.Event()
        self.start()
        self.thread = threading.Thread(target=self._traffic, daemon=True)
        self.thread.start()

    @property
    def events(self):
        return f"tcp://{self.host}:5557"

    @property
    def replay(self):
        return f"tcp://{self.host}:5558"

    def flag(self, **options):
        """--engine for this engine."""
        options = {"id": "e0", "model": MODEL, "replay": self.replay, **options}
        return f"vllm={self.events}" + "".join(f",{key}={value}" for key, value in options.items() if value)

    def start(self):
        words = self.space.words(
            self.binary, "sim", "--events", self.events, "--replay", self.replay, "--http", "0.0.0.0:8000",
            "--blocks", HELD, "--block-size", BLOCK, "--log-format", "json",
        )
        began = time.monotonic()
        process = Process(*words)
        caller = Caller(self.space, port_of(process.logged("http")[0]["address"]))
        with self.lock:
            self.process, self.caller, self.held = process, caller, set()
            self.truth.record(began, ())

    def kill(self):
        """kill -9. What it held is gone."""
        with self.lock:
            began = time.monotonic()
            self.process.process.kill()
            self.process.process.wait()
            self.truth.record(began, ())
            self.process.close()
            self.process = None
            self.caller.close()

    def serve(self, count=1):
        """Runs some requests now, each for the next document."""
        for _ in range(count):
            with self.lock:
                if self.process is not None:
                    self._request()

    def _request(self):
        began = time.monotonic()
        document, self.document = self.document, (self.document + 1) % DOCUMENTS
        status, answer = self.caller.call(
            "POST", "/v1/completions", {"prompt": prompt(document), "max_tokens": 1}
        )
        assert status == 200, answer
        after = self._held()
        if document not in self.hashes:
            (self.hashes[document],) = after - self.held
        self.held = after
        self.truth.record(began, (document for document, hash in self.hashes.items() if hash in after))

    def _held(self):
        return set(self.caller.call("GET", "/sim/state")[1]["ranks"][0]["blocks"])

    def _traffic(self):
        while not self.ended.is_set():
            if self.busy.is_set():
                self.serve()
            self.ended.wait(self.pace)

    def close(self):
        self.ended.set()
        self.thread.join(timeout=10)
        if self.process is not None:
            self.process.close()


@dataclass(frozen=True)
class Answer:
    asked: float
    answered: float
    document: int
    trust: str | None  # None: the engine was not credited
    held: bool
    age: float | None  # seconds


class Watch:
    """Asks a plane all the time what its engine holds."""

    def __init__(self, plane, engine, name):
        self.plane, self.engine, self.name = plane, engine, name
        self.answers, self.failed, self.ended = [], [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        caller, choose = Caller(self.plane.space, self.plane.http_port), random.Random(1)
        while not self.ended.wait(ASK_EVERY):
            try:
                self.answers.append(self._ask(caller, choose.randrange(DOCUMENTS)))
            except (OSError, KeyError, AssertionError) as error:
                self.failed.append(repr(error))

    def _ask(self, caller, document):
        asked = time.monotonic()
        status, answer = caller.call("POST", "/v1/query", {"model": MODEL, "token_ids": prompt(document), "all": True})
        answered = time.monotonic()
        assert status == 200, answer
        for match in answer["matches"]:
            if match["engine"] == self.name:
                age = match.get("age_ms")
                return Answer(asked, answered, document, match["trust"], match["tokens"] > 0, age and age / 1000)
        return Answer(asked, answered, document, None, False, None)

    def close(self):
        """Ends, and returns all answers."""
        self.ended.set()
        self.thread.join(timeout=15)
        assert not self.failed, self.failed[:3]
        return self.answers


def wrong(answers, truth, bound):
    """Credited answers that describe no state of the engine within the bound: each with how far it is off."""
    found = []
    for answer in answers:
        if answer.trust not in ("exact", "lower"):
            continue
        states = truth.between(answer.asked - bound, answer.answered)
        is_right = any((answer.document in state) == answer.held for state in states)
        if not (is_right or (answer.trust == "lower" and not answer.held)):
            found.append(answer)
    return found


class Plane(Process):
    """`kvplane serve` in a namespace, asked from inside it."""

    def __init__(self, binary, space, *words, grpc="127.0.0.1:0"):
        listen = ["--http", "127.0.0.1:0", "--grpc", grpc, "--log-format", "json"]
        super().__init__(*space.words(binary, "serve", *listen, *words))
        self.space = space
        (serving,) = self.logged("serving")
        self.http_port, self.grpc = port_of(serving["http"]), serving["grpc"]

    def stream(self, name):
        """The status of an engine's only rank; None while there is none."""
        caller = Caller(self.space, self.http_port)
        try:
            engines = caller.call("GET", "/v1/status")[1]["engines"]
        finally:
            caller.close()
        ranks = [rank for engine in engines if engine["id"] == name for rank in engine["ranks"]]
        return ranks[0] if ranks else None

    def wait_live(self, name, deadline=30.0):
        def look():
            stream = self.stream(name)
            return stream if stream and stream["continuity"] == "live" else None

        return eventually(look, lambda: f"{name} live; {self.stream(name)}\n{self.log()[-3000:]}", deadline)


FOLLOWER = Path(__file__).with_name("smg_follow.py")
