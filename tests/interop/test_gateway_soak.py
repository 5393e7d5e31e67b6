"""Many conversations through the gateway while engines fail: no request is lost, none gets another's answer, and every token has a cause.

SOAK_GATEWAY=20000 makes it longer, as `make soak-gateway` does.
"""

import http.client
import json
import os
import random
import threading

import pytest

from harness.plane import http as fetch
from harness.wait import eventually
from test_envoy_engines import vocabulary  # noqa: F401
from test_gateway import gateway  # noqa: F401
from test_gateway_faults import nothing_is_left

REQUESTS = int(os.environ.get("SOAK_GATEWAY", "300"))
CLIENTS = 8
# The last engine only restarts and evicts: there is always somebody who could serve.
SERVICE = [{"status": 503, "count": 2}, {"status": 429, "count": 1}, {"die_after": 1, "count": 1}, {"die_after": 0, "count": 1}, {"no_ranks": True, "count": 2}]
EVENTS = [{"drop": 2}, {"duplicate": 2}, {"reorder": 1}, {"disconnect": True}]


def settled(plane, silent):
    """The ledger, once it waits for nothing but engines that ended an answer without a usage."""
    ledger = fetch("GET", plane.http + "/v1/receipts?worst=64")[1]
    counts = ledger["receipts"]
    return counts["decided"] - counts["settled"] - counts["aborted"] - counts["not_reported"] <= silent and ledger


class Client(threading.Thread):
    def __init__(self, soak, number):
        super().__init__(daemon=True)
        self.soak, self.random = soak, random.Random(number)
        self.start()

    def run(self):
        try:
            while self.soak.take():
                self.one()
        except BaseException as error:  # noqa: BLE001
            self.soak.fail(repr(error))

    def one(self):
        story, turns, stream = self.random.randrange(12), self.random.randrange(1, 6), self.random.random() < 0.5
        content = f"Story {story}: " + f"a line of story {story} that goes on. " * turns * 4
        body = {"model": "sim", "messages": [{"role": "user", "content": content}], "max_tokens": 3, "stream": stream}
        connection = http.client.HTTPConnection(self.soak.address, timeout=80)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if stream and self.random.random() < 0.05:
                return self.soak.count("gone")
            try:
                text = answer.read().decode()
            except http.client.IncompleteRead as cut:
                text = cut.partial.decode()
                # An engine that went within its answer is the one thing that a client is told of.
                assert stream and "engine_lost" in text, text
                return self.soak.count("broken")
        finally:
            connection.close()
        assert answer.status == 200, (answer.status, text)
        if stream:
            events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            assert events[-1] == "[DONE]", text
            events = [json.loads(event) for event in events[:-1]]
            if any("error" in event for event in events):
                # It said itself that it was restarted.
                return self.soak.count("broken")
            words = "".join(event["choices"][0]["delta"]["content"] for event in events)
        else:
            words = json.loads(text)["choices"][0]["message"]["content"]
        self.soak.answered(content, words.split())


class Soak:
    def __init__(self, address):
        self.address, self.lock = address, threading.Lock()
        self.left, self.failed = REQUESTS, []
        self.counts = dict.fromkeys(("whole", "broken", "gone"), 0)
        self.words = {}

    def take(self):
        with self.lock:
            self.left -= 1
            return self.left >= 0 and not self.failed

    def fail(self, why):
        with self.lock:
            self.failed.append(why)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def answered(self, content, words):
        """What an engine says to a prompt is the same everywhere, and another to every other prompt."""
        with self.lock:
            self.counts["whole"] += 1
            assert self.words.setdefault(content, words) == words, "somebody else's answer"


@pytest.mark.timeout(3_600)
def test_no_request_is_lost_and_every_token_has_a_cause(gateway):  # noqa: F811
    options = 'attempts = 4\nretry_budget = 1.0\nbreaker_open = "50ms"\nbreaker_open_max = "200ms"'
    plane, sims = gateway(count=3, gateway=options, words=("--blocks", 256))
    soak = Soak(plane.gateway.removeprefix("http://"))
    clients = [Client(soak, number) for number in range(CLIENTS)]
    chance = random.Random(7)
    while any(client.is_alive() for client in clients):
        chosen = chance.choice(sims)
        kind = chance.randrange(4)
        if kind == 0 and chosen is not sims[-1]:
            chosen.fault(service=chance.choice(SERVICE))
        elif kind == 1:
            chosen.fault(**chance.choice(EVENTS))
        elif kind == 2 and chosen is not sims[-1] and chance.random() < 0.2:
            chosen.fault(restart={"same_content": chance.random() < 0.5})
        clients[0].join(0.05)
    assert not soak.failed, soak.failed[:3]
    assert sum(soak.counts.values()) == REQUESTS and len({tuple(words) for words in soak.words.values()}) == len(soak.words)
    for sim in sims:
        sim.fault(service={})
        # A frame that was lost is missed with the next one.
        sim.complete(list(range(40)), max_tokens=1)
    ledger = eventually(lambda: settled(plane, soak.counts["broken"]), "every account is settled")
    print(soak.counts, ledger["receipts"], ledger["tokens"], ledger["lost"])
    assert ledger["lost"]["unknown"] == 0, ledger["worst"]
    said = [line for line in plane.log().splitlines() if "drift" in line]
    assert ledger["receipts"]["drifts"] == 0, said
    assert ledger["receipts"]["settled"] > 0 and ledger["tokens"]["delivered"] > 0
    nothing_is_left(plane)
