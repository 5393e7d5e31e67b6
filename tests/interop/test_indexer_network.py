"""The routes of an indexer from another machine: who is admitted without a key, and to what. In network namespaces of the test's own."""

import http.client
import json
import signal

import pytest

from harness.netns import Net, missing
from harness.plane import Process, run
from harness.wait import eventually

WHY_NOT = missing()
in_namespaces = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

REGISTER = {"instance_id": 7, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4}


@pytest.fixture
def net():
    made = Net()
    yield made
    made.close()


class Served:
    """kvplane in one namespace, asked from another."""

    def __init__(self, net, binary, config):
        self.there, self.here = net.space("plane"), net.space("client")
        self.link = net.link(self.here, self.there)
        self.client, self.plane = self.link.addresses
        words = self.there.words(binary, "serve", "--config", config, "--http", f"{self.plane}:0", "--grpc", "127.0.0.1:0", "--log-format", "json")
        self.process = Process(*words)
        self.port = int(self.process.logged("serving")[0]["http"].rsplit(":", 1)[1])

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(self.plane, self.port, timeout=10)
        connection.sock = self.here.connect((self.plane, self.port), 10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


@in_namespaces
def test_networks_are_admitted_by_name(net, binary, tmp_path):
    config = tmp_path / "kvplane.toml"
    config.write_text('[indexer]\nopen = ["10.77.1.1"]\n')
    served = Served(net, binary, config)
    try:
        assert served.client == "10.77.1.1"
        assert served.ask("POST", "/register", REGISTER) == 201
        assert served.ask("GET", "/workers") == served.ask("GET", "/dump") == 200
        assert served.ask("POST", "/query", {"model_name": "m", "token_ids": [1]}) == 200
        for closed in ("/v1/status", "/v1/engines", "/metrics", "/kv_recover", "/openapi.json"):
            assert served.ask("GET", closed) == 403, closed
        assert served.ask("GET", "/dump", Origin="http://10.77.1.2") == 403
        # Another role, and then none, from the next request on.
        config.write_text('[indexer]\nopen_read = ["10.77.0.0/16"]\n')
        served.process.process.send_signal(signal.SIGHUP)
        served.process.logged("configuration reloaded")
        assert served.ask("POST", "/unregister", {"instance_id": 7, "model_name": "m"}) == 403
        assert served.ask("GET", "/dump") == 200
        config.write_text("")
        served.process.process.send_signal(signal.SIGHUP)
        eventually(lambda: served.ask("GET", "/dump") == 403, "closed again")
    finally:
        served.process.close()


def test_a_listener_beyond_loopback_needs_somebody_to_be_named(binary):
    beyond = ["serve", "--http", "203.0.113.1:0", "--grpc", "127.0.0.1:0"]
    refused = run(binary, *beyond)
    assert refused.returncode == 2 and "listen.http" in refused.stderr and "[auth]" in refused.stderr
    everybody = run(binary, *beyond, "--set", 'indexer.open=["0.0.0.0/0"]')
    assert everybody.returncode == 2 and "--insecure" in everybody.stderr
    grpc = run(binary, "serve", "--grpc", "203.0.113.1:0", "--set", 'indexer.open=["203.0.113.0/24"]')
    assert grpc.returncode == 2 and "listen.grpc" in grpc.stderr
    # The address is nobody's here: past this check, the socket cannot be bound.
    named = run(binary, *beyond, "--set", 'indexer.open=["203.0.113.0/24"]')
    assert named.returncode == 1 and "203.0.113.1" in named.stderr
