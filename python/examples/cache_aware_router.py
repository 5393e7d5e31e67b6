"""A cache-aware router: every prompt goes to the engine that can reuse most of it.

    python cache_aware_router.py 127.0.0.1:50090 MODEL e0=http://10.0.0.1:8000 e1=http://10.0.0.2:8000

The copy of the plane's state is in this process: asking it takes microseconds, and waits for nobody.
"""

import itertools
import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kvplane


class Router:
    def __init__(self, client: kvplane.Client, model: str, engines: dict[str, str]) -> None:
        self.client, self.model, self.engines, self.turns = client, model, engines, itertools.count()

    def pick(self, prompt: list[int]) -> str:
        try:
            best = self.client.query(self.model, prompt).best
        except kvplane.Error:  # the plane was never reached, or has no such model
            best = ()
        # `lower` is what an engine holds at least. Whatever is worth less than that is no reason to prefer it.
        known = [found.engine for found in best if found.trust in ("exact", "lower") and found.engine in self.engines]
        candidates = known or list(self.engines)
        return candidates[next(self.turns) % len(candidates)]


def serve(router: Router, port: int = 0) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            engine = router.pick(json.loads(body)["prompt"])
            request = urllib.request.Request(router.engines[engine] + self.path, body, {"content-type": "application/json"})
            try:
                response = urllib.request.urlopen(request)
            except urllib.error.HTTPError as refusal:  # an answer too: whoever asked is told what the engine says
                response = refusal
            self.send_response(response.status)
            self.send_header("x-engine", engine)
            self.end_headers()
            self.wfile.write(response.read())

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    address, model, *engines = sys.argv[1:]
    with kvplane.Client(address) as client:
        client.wait_ready(timeout=5)
        server = serve(Router(client, model, dict(engine.split("=", 1) for engine in engines)))
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
