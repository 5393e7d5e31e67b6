"""A plane with a gateway in front of simulated engines."""

import http.client
import json
import tempfile
import urllib.request
from pathlib import Path

from harness.plane import Process, http as fetch
from harness.wait import eventually

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "Once upon a time there was a gateway, and many asked it."}]}


class GatewayPlane(Process):
    """`kvplane serve` with a gateway over simulators, configured by a file."""

    def __init__(self, binary, sims, gateway="", more=""):
        self.directory = tempfile.TemporaryDirectory(prefix="kvplane-gateway-")
        self.path = Path(self.directory.name)
        engines = "".join(
            f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "sim"\nevents = "{sim.events[0]}"\nreplay = "{sim.replay[0]}"\n'
            f'ranks = {len(sim.events)}\nhttp = "{sim.http}"\n'
            for at, sim in enumerate(sims)
        )
        config = self.path / "kvplane.toml"
        self.has_keys = "[[auth.token]]" in more
        config.write_text(f'{more}\n[gateway]\nlisten = "127.0.0.1:0"\n{gateway}\n{engines}')
        super().__init__(
            binary, "serve", "--config", config, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-format", "json",
        )
        self.gateway = f"http://{self.logged('gateway listening')[0]['address']}"
        self.http = f"http://{self.logged('serving')[0]['http']}"

    def chat(self, content=None, headers=None, **more):
        """The status, the headers and the bytes of an answer."""
        body = {**CHAT, "max_tokens": 4, **more}
        if content is not None:
            body["messages"] = [{"role": "user", "content": content}]
        connection = http.client.HTTPConnection(self.gateway.removeprefix("http://"), timeout=60)
        try:
            words = {"content-type": "application/json", "x-kvplane-receipt": "1", **(headers or {})}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), words)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def until_served(self, key, models):
        """Waits until these models can be asked for."""

        def served():
            request = urllib.request.Request(self.gateway + "/v1/models", headers={"authorization": f"Bearer {key}"})
            with urllib.request.urlopen(request) as page:
                return [model["id"] for model in json.load(page)["data"]] == models

        eventually(served, f"{models} are served")

    def receipt(self, name):
        return fetch("GET", f"{self.http}/v1/receipts/{name}")[1]

    def settled(self, name):
        """A receipt for which was reported what was delivered."""
        receipt = self.receipt(name)
        return receipt if receipt["state"] == "settled" else None

    def metrics(self):
        with urllib.request.urlopen(f"{self.http}/metrics") as page:
            return page.read().decode()

    def until_live(self, count):
        """Waits until every stream is live, and has what its engine published last."""
        if self.has_keys:
            return

        def live():
            streams = [stream for engine in fetch("GET", f"{self.http}/v1/status")[1]["engines"] for stream in engine["ranks"]]
            return len(streams) >= count and all(stream["continuity"] == "live" for stream in streams)

        eventually(live, lambda: fetch("GET", f"{self.http}/v1/status")[1])
