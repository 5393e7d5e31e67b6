"""The example: prompts go where they are held, and in turns where that is not known."""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from planes import MODEL, eventually, fleet, prompt

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cache_aware_router.py"


@pytest.fixture
def own(binary):
    with fleet(binary, 3) as one:
        yield one


class Routed:
    """The example as a process of its own."""

    def __init__(self, own):
        engines = [f"e{at}={sim.http}" for at, sim in enumerate(own.sims)]
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), own.address, MODEL, *engines], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.url = self.process.stdout.readline().strip()

    def complete(self, ids):
        """Which engine it was, and how much that found in its cache."""
        body = json.dumps({"prompt": ids, "max_tokens": 1}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"content-type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=15) as response:
            answer = json.load(response)
            return response.headers["x-engine"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def test_prompts_go_where_they_are_held(own):
    own.settle()
    with Routed(own) as router:
        first = {seed: router.complete(prompt(seed, 4)) for seed in range(6)}
        assert Counter(engine for engine, _ in first.values()) == {"e0": 2, "e1": 2, "e2": 2}, "nothing is held: in turns"
        own.settle()

        def again(seed):
            """The copy follows the plane a moment later."""
            return router.complete(prompt(seed, 4)) == (first[seed][0], 32)

        for seed in range(6):
            eventually(lambda seed=seed: again(seed), f"prompt {seed} where it is held")
        for seed in range(6):
            assert again(seed)


def test_in_turns_while_the_plane_is_away(own):
    own.sims[1].complete(prompt(1, 4))
    own.settle()
    with Routed(own) as router:
        assert [router.complete(prompt(1, 4))[0] for _ in range(3)] == ["e1"] * 3
        own.stop_plane()

        def in_turns():
            return Counter(router.complete(prompt(1, 4))[0] for _ in range(6)) == {"e0": 2, "e1": 2, "e2": 2}

        eventually(in_turns, "all engines, in turns")
