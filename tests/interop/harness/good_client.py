"""A client that means no harm: `python -m harness.good_client JSON` asks until its standard input ends, then says how it went.

A question is due every 10 ms and counts from then on: one that has to wait for the answer before it has waited as well.
"""

import http.client
import itertools
import json
import ssl
import sys
import threading
import time
import urllib.request

from .hostile import HEADERS, Http2, grpc_message, rss

EVERY = 0.01
STATUS_EVERY = 20  # every so many questions are for the status, which looks at every stream
PATIENCE = 10


def query(address, model, prompt):
    """Asks for a prompt over a connection that stays, and now and then for the status of all streams."""

    host, port = address.rsplit(":", 1)
    body = json.dumps({"model": model, "token_ids": prompt})
    kept, number = [], itertools.count(1)

    def ask():
        connection = kept.pop() if kept else http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
        if next(number) % STATUS_EVERY:
            connection.request("POST", "/v1/query", body, {"content-type": "application/json"})
        else:
            connection.request("GET", "/v1/status")
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        kept.append(connection)

    return ask


def page(url, ca):
    trust = ssl.create_default_context(cafile=ca) if ca else None
    handlers = [urllib.request.ProxyHandler({})] + ([urllib.request.HTTPSHandler(context=trust)] if trust else [])
    opener = urllib.request.build_opener(*handlers)

    def ask():
        with opener.open(url, timeout=PATIENCE) as answer:
            assert answer.status == 200

    return ask


def health(address):
    def ask():
        connection = Http2(address, timeout=PATIENCE)
        try:
            connection.open("/grpc.health.v1.Health/Check", grpc_message(b""))
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end and not connection.ended:
                if any(kind == HEADERS for kind, _, _, _ in connection.hear(0.5)):
                    return
            raise OSError("no answer")
        finally:
            connection.close()

    return ask


def main(kind, pid, **how):
    ask = {"query": query, "page": page, "health": health}[kind](**how)
    ended = threading.Event()
    found = {"latencies": [], "failures": [], "peak": 0.0}

    def weigh():
        while not ended.wait(0.02):
            found["peak"] = max(found["peak"], rss(pid))

    def run():
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            try:
                ask()
            except (OSError, AssertionError, http.client.HTTPException) as error:
                found["failures"].append(repr(error))
            found["latencies"].append(time.monotonic() - due)
            due += EVERY

    threads = [threading.Thread(target=work) for work in (weigh, run)]
    ask()
    for thread in threads:
        thread.start()
    print("asking", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
