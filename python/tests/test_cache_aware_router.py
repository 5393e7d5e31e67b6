"""The example: prompts go where they are held, and in turns where that is not known."""

import ast
import json
import subprocess
import sys
import urllib.error
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


def test_what_an_engine_refuses_is_told(own):
    own.settle()
    with Routed(own) as router:
        with pytest.raises(urllib.error.HTTPError) as raised:
            router.complete([])
        direct = urllib.request.Request(f"{own.sims[0].http}/v1/completions", b'{"prompt": [], "max_tokens": 1}', {"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as expected:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(direct, timeout=15)
        assert (raised.value.code, raised.value.read()) == (expected.value.code, expected.value.read())
        assert raised.value.headers["x-engine"] in ("e0", "e1", "e2")


def test_it_has_forty_lines():
    source = EXAMPLE.read_text()
    words = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    documentation = {line for text in words for line in range(text.lineno, text.end_lineno + 1)}
    code = [line for at, line in enumerate(source.splitlines(), 1) if at not in documentation and line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 40


def test_in_turns_while_the_plane_is_away(own):
    own.sims[1].complete(prompt(1, 4))
    own.settle()
    with Routed(own) as router:
        assert [router.complete(prompt(1, 4))[0] for _ in range(3)] == ["e1"] * 3
        own.stop_plane()

        def in_turns():
            return Counter(router.complete(prompt(1, 4))[0] for _ in range(6)) == {"e0": 2, "e1": 2, "e2": 2}

        eventually(in_turns, "all engines, in turns")
