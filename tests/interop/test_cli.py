"""The command line: what it says, where, and with which exit code."""

import json
import re
import socket
import subprocess
import time

import pytest

from harness.plane import clean_environment, run
from harness.wait import eventually
from harness.wire import NEWEST

V = NEWEST
FREE = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]


def root(hash):
    return V.stored([hash], None, [70_000 + hash] * 4, 4)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "kvplane.toml"
        path.write_text(text)
        return path

    return write


def engine_toml(engine, id="a"):
    return f'[[engine]]\nid = "{id}"\nkind = "vllm"\nevents = "{engine.events}"\nreplay = "{engine.replay}"\n'


def refused(done, code, *words):
    """It ended with this code, and one line on standard error that holds the words."""
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("kvplane: ")
    for word in words:
        assert word in lines[0], (word, lines[0])


# --- configuration -------------------------------------------------------------------------------------------


def bad_configs(engine):
    good = engine_toml(engine)
    return {
        "unknown key": (good + "colour = 1\n", ["kvplane.toml:6:", "colour"]),
        "unknown key at the top": ("listen = {}\ncolour = 1\n", ["kvplane.toml:2:", "colour"]),
        "unknown section": (good + "[colours]\nred = 1\n", ["kvplane.toml:6:", "colours"]),
        "not toml": ("[listen\n", ["kvplane.toml:1:"]),
        "wrong type": (good + "ranks = \"two\"\n", ["kvplane.toml:6:"]),
        "unknown kind": (good.replace("vllm", "vlm"), ["kvplane.toml:3:", "vlm"]),
        "missing key": ('[[engine]]\nid = "a"\n', ["kvplane.toml:1:", "kind"]),
        "no source": ('[[engine]]\nid = "a"\nkind = "vllm"\n', ['engine[0] ("a")', "events"]),
        "bad size": ('[journal]\nmax_bytes = "lots"\n', ["kvplane.toml:2:"]),
        "bad duration": ('[follow]\ndown_after = "soon"\n', ["kvplane.toml:2:"]),
        "bad address": ('[listen]\nhttp = "here"\n', ["kvplane.toml:2:"]),
        "duplicate id": (good + engine_toml(engine), ['"a"', "used twice"]),
        "bad endpoint": (good.replace(engine.events, "127.0.0.1:5557"), ["127.0.0.1:5557", "tcp://"]),
        "bad replay": (good.replace(engine.replay, "tcp://127.0.0.1"), ["tcp://127.0.0.1"]),
        "port out of range": (good.replace(engine.events, "tcp://127.0.0.1:70000"), ["70000"]),
        "empty id": (good.replace('"a"', '""'), ["id"]),
        "no ranks": (good + "ranks = 0\n", ["ranks"]),
        "bad trust": ('[trust]\ncredit = ["good"]\n' + good, ["kvplane.toml:2:", "good"]),
    }


@pytest.mark.parametrize("case", list(bad_configs(type("E", (), {"events": "tcp://e:1", "replay": "tcp://e:2"}))))
def test_a_bad_configuration_is_one_line_and_contacts_nobody(binary, engine, config, case):
    one = engine(synchronised=True)
    text, words = bad_configs(one)[case]
    done = run(binary, "serve", *FREE, "--config", config(text), timeout=10)
    refused(done, 2, *words)
    assert not one.has_subscriber() and one.asked == [], "an engine was contacted"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--engine", "vllm"], "KIND=EVENTS"),
        (["--engine", "vllm=tcp://a:1,colour=red"], "colour"),
        (["--engine", "vllm=tcp://a:1,replay"], "key=value"),
        (["--engine", "vllm=tcp://a:1", "--set", "journal.colour=1"], "colour"),
        (["--engine", "vllm=tcp://a:1", "--set", "journal"], "KEY=VALUE"),
        (["--engine", "vllm=tcp://a:1", "--log", "=="], "--log"),
    ],
)
def test_bad_flags_are_one_line(binary, words, expected):
    refused(run(binary, "serve", *FREE, *words, timeout=10), 2, expected)


def test_a_file_that_is_not_there_is_no_mistake_of_the_command(binary):
    """It may come yet: a service is started again."""
    refused(run(binary, "serve", *FREE, "--config", "/nowhere/kvplane.toml", timeout=10), 1, "/nowhere/kvplane.toml")


def test_a_bad_environment_is_one_line(binary):
    environment = clean_environment(KVPLANE__JOURNAL__MAX_BATCHES="many")
    done = run(binary, "serve", *FREE, "--engine", "vllm=tcp://a:1", env=environment, timeout=10)
    refused(done, 2, "KVPLANE__JOURNAL__MAX_BATCHES")


@pytest.mark.parametrize("which", ["http", "grpc"])
def test_a_taken_port_fails_and_contacts_nobody(binary, engine, which):
    one = engine(synchronised=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = dict(zip(("--http", "--grpc"), ("127.0.0.1:0", "127.0.0.1:0"))) | {f"--{which}": f"127.0.0.1:{port}"}
        flags = [word for pair in words.items() for word in pair]
        done = run(binary, "serve", *flags, "--engine", f"vllm={one.events},replay={one.replay}", timeout=10)
    refused(done, 1, f"listen.{which}", str(port))
    assert not one.has_subscriber() and one.asked == []


def test_dump_config_round_trips(binary, engine, config):
    one = engine()
    text = '[journal]\nmax_bytes = "1MiB"\non_gap = "keep"\n[follow]\ndown_after = "1500ms"\n' + engine_toml(one)
    environment = clean_environment(KVPLANE__LISTEN__HTTP="127.0.0.1:9001", KVPLANE__ENGINE__0__MODEL="m")
    first = run(binary, "serve", "--config", config(text), "--grpc", "127.0.0.1:9002", "--set", "journal.max_batches=77",
                "--engine", "vllm=tcp://b:1,id=b,worker_id=18446744073709551", "--dump-config", env=environment)
    assert (first.returncode, first.stderr) == (0, "")
    for part in ("127.0.0.1:9001", "127.0.0.1:9002", "max_batches = 77", 'on_gap = "keep"', 'model = "m"', "18446744073709551"):
        assert part in first.stdout, first.stdout
    second = run(binary, "serve", "--config", config(first.stdout), "--dump-config")
    assert second.stdout == first.stdout
    assert (second.returncode, second.stderr) == (0, "")


ENGINE_BY_ENVIRONMENT = {
    "KVPLANE__ENGINE__0__ID": "a", "KVPLANE__ENGINE__0__KIND": "vllm", "KVPLANE__ENGINE__0__EVENTS": "tcp://a:1",
}


def test_an_engine_by_the_environment_alone(binary):
    done = run(binary, "serve", "--dump-config", env=clean_environment(**ENGINE_BY_ENVIRONMENT))
    assert (done.returncode, done.stderr) == (0, "")
    assert 'id = "a"' in done.stdout


@pytest.mark.parametrize("how", ["environment", "--set"])
def test_text_that_looks_like_a_number(binary, config, how):
    path = config('[[engine]]\nid = "a"\nkind = "vllm"\nevents = "tcp://a:1"\n')
    if how == "environment":
        done = run(binary, "serve", "-c", path, "--dump-config", env=clean_environment(KVPLANE__ENGINE__0__MODEL="405"))
    else:
        done = run(binary, "serve", "-c", path, "--set", "engine.0.model=405", "--dump-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'model = "405"' in done.stdout


@pytest.mark.parametrize("words", [["serve", "--dump-config"], ["demo", "--plain", "--seconds", "1"]], ids=lambda w: w[0])
def test_output_that_nobody_takes(binary, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(binary), *words], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=30, env=clean_environment(),
        )
    assert "panicked" not in done.stderr
    assert done.returncode in (0, 1)


def test_the_default_configuration_is_loopback(binary):
    done = run(binary, "serve", "--dump-config")
    assert done.returncode == 0
    assert re.findall(r'(?:http|grpc) = "([\d.]+):', done.stdout) == ["127.0.0.1", "127.0.0.1"]


# --- help ----------------------------------------------------------------------------------------------------


def test_every_command_has_help_with_an_example(binary):
    top = run(binary, "--help")
    assert top.returncode == 0
    commands = re.findall(r"^  (\w+)  ", top.stdout.split("Commands:")[1].split("Options:")[0], re.MULTILINE)
    commands.remove("help")
    assert set(commands) >= {"serve", "sim", "tail", "dump", "demo"}
    for command in commands:
        done = run(binary, command, "--help")
        assert done.returncode == 0
        assert re.search(rf"Examples?:\n.*kvplane {command}", done.stdout, re.DOTALL), command
    assert run(binary, "--version").stdout.startswith("kvplane ")


@pytest.mark.parametrize("words", [["frobnicate"], ["serve", "--nope"], ["tail", "-o", "yaml"], []])
def test_usage_errors_exit_two(binary, words):
    done = run(binary, *words)
    assert done.returncode == 2 and done.stdout == "" and "--help" in done.stderr


# --- tail and dump -------------------------------------------------------------------------------------------


class Tail:
    def __init__(self, plane, *words):
        self.process = subprocess.Popen(
            [str(plane.binary), "tail", "--plane", f"http://{plane.grpc}", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
        )

    def until(self, wanted):
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if wanted(line):
                return lines
        raise AssertionError(f"ended early: {lines} {self.process.stderr.read()}")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def tail():
    made = []

    def make(*args):
        made.append(Tail(*args))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("tokens", [False, True], ids=["without", "with"])
def test_tail_prints_json_lines_and_tokens_only_when_asked(engine, plane, tail, tokens):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    t = tail(p, "-o", "json", "--from", "snapshot", *(["--tokens"] if tokens else []))
    lines = t.until(lambda line: '"snapshot"' in line)
    salted = V.stored([2], None, [70_002] * 4, 4, extra_keys=[["secret-salt"]])
    sparse = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 4}
    last = one.publish(salted, V.stored([2], None, [70_002] * 16, 4, **sparse), V.removed([1]))
    lines += t.until(lambda line: json.loads(line).get("batch", {}).get("engine_sequence") == last)
    records = [json.loads(line) for line in lines]
    kinds = [next(k for k in ("reset", "snapshot", "batch") if k in record) for record in records]
    assert kinds[:2] == ["reset", "snapshot"] and kinds[-1] == "batch"
    assert all(isinstance(record["sequence"], str) for record in records), "beyond 2^53: strings"
    stored, _, removed = records[-1]["batch"]["events"]
    assert stored["stored"]["blocks"][0]["hash"] == "2"
    assert removed["removed"]["blocks"] == [{"hash": "1", "copies": 0}]
    text = "".join(lines)
    assert ("70001" in text and "70002" in text) == tokens
    assert tokens or "secret-salt" not in text


def test_tail_and_dump_for_people_show_no_tokens(engine, plane, tail):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    t = tail(p, "--from", "snapshot")
    t.until(lambda line: "snapshot" in line)
    last = one.publish(root(2))
    lines = t.until(lambda line: f"seq {last}" in line)
    assert "70002" not in "".join(lines)
    done = p.command("dump")
    assert done.returncode == 0
    assert f"{1:016x}" in done.stdout and "exact" in done.stdout and "70001" not in done.stdout
    assert "70001" in p.command("dump", "--tokens").stdout


def test_unknown_engines_are_answered_with_the_known_ones(engine, plane):
    p = plane(engine(), engine())
    for words in (["tail", "--engine", "nobody"], ["dump", "--engine", "nobody"]):
        done = p.command(*words)
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) == 1
        assert "nobody" in done.stderr and "e0" in done.stderr and "e1" in done.stderr
    done = p.command("dump")
    assert done.returncode == 2 and "e0, e1" in done.stderr
    done = p.command("tail", "--engine", "e0", "--rank", "4")
    assert done.returncode in (1, 2) and "rank 4" in done.stderr


def test_nobody_there(binary):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for command in ("tail", "dump"):
            done = run(binary, command, "--plane", f"http://127.0.0.1:{port}")
            refused(done, 1, f"127.0.0.1:{port}", "kvplane serve")


def test_status_puts_trouble_first(binary, engine, plane):
    served = plane(engine(), args=["--engine", "vllm=tcp://127.0.0.1:1,id=gone"])
    served.wait_live("e0")
    document = json.loads(run(binary, "status", "--server", served.http, "-o", "json").stdout)
    assert [stream["engine"] for stream in document["streams"]][0] == "gone"
    assert document["engines"] == 2 and document["healthy"] is False
    assert "endpoint_unreachable" in [problem["code"] for problem in document["problems"]]
    page = run(binary, "status", "--server", served.http).stdout
    assert page.startswith("Fleet") and "do:" in page


def test_a_mixed_up_port_is_named(binary, engine, plane):
    served = plane(engine())
    refused(run(binary, "status", "--server", f"http://{served.grpc}"), 1, "listen.http")
    refused(run(binary, "dump", "--plane", served.http), 2, "--server", "listen.grpc")
    refused(run(binary, "tail", "--server", f"http://{served.grpc}", "--seconds", "1"), 1, "listen.http")


def test_grpc_is_found_through_the_http_address(binary, engine, plane):
    one = engine()
    served = plane(one)
    served.wait_live()
    one.publish(root(1))
    eventually(lambda: "device" in run(binary, "dump", "--server", served.http).stdout, "a block")
    done = run(binary, "info", "--server", served.http, "--dry-run")
    assert "ENGINE" in done.stdout, done
    refused(run(binary, "dump", "--server", "http://127.0.0.1:1"), 1, "no kvplane answers")


def test_tail_ends_with_its_plane_and_with_its_reader(engine, plane, tail):
    one = engine()
    p = plane(one)
    p.wait_live()
    t = tail(p, "--from", "snapshot")
    t.until(lambda line: "snapshot" in line)
    p.stop()
    assert t.process.wait(timeout=10) == 1
    assert "shutting down" in t.process.stderr.read()

    p = plane(one)
    t = tail(p, "--from", "snapshot")
    t.until(lambda line: "snapshot" in line)
    t.process.stdout.close()

    def ended():
        one.publish(root(int(time.time() * 1000) % 10_000))
        return t.process.poll() is not None

    eventually(ended, "tail ends when nobody reads")
    assert t.process.returncode == 0


def test_tail_stops_after_seconds(engine, plane):
    p = plane(engine())
    done = p.command("tail", "--seconds", "1")
    assert (done.returncode, done.stderr) == (0, "")


# --- demo and sim --------------------------------------------------------------------------------------------


def test_demo(binary):
    done = run(binary, "demo", "--seconds", "5", "--plain")
    assert done.returncode == 0, done.stderr
    # Of the fifth some events are stolen: less is known of it until it is as much as the engine counts.
    assert len(re.findall(r"^\S+-0 .* equal ", done.stdout, re.MULTILINE)) in (4, 5), done.stdout
    assert re.search(r"^false hits +kvplane 0, plain consumer \d+$", done.stdout, re.MULTILINE), done.stdout
    assert "\x1b" not in done.stdout


def test_sim_refuses_what_it_cannot_be(binary):
    for words in (["--profile", "vllm-1.0"], ["--hashes", "md5"]):
        assert run(binary, "sim", *words, timeout=10).returncode == 2
    done = run(binary, "sim", "--fault", '{"explode": 1}', "--http", "127.0.0.1:0", timeout=10)
    assert done.returncode == 2 and "explode" in done.stderr


# --- HTTP ----------------------------------------------------------------------------------------------------


def test_http_pages(engine, plane):
    one = engine()
    p = plane(one, model="llama", topic="")
    last = one.publish(root(1))
    p.wait_at(last)
    assert p.get("/healthz") == (200, "ok\n")
    heard = {"expected": 1, "heard": 1}
    assert p.get("/readyz") == (200, {"ready": True, "reasons": [], "publishers": {**heard, "engines": {"e0": heard}}})
    assert p.get("/readyz?strict=1")[0] == 200
    (described,) = p.get("/v1/engines")[1]["engines"]
    assert (described["id"], described["model"], described["added_by"]) == ("e0", "llama", "config")
    assert described["ranks"] == [{"rank": 0, "events": one.events, "replay": one.replay}]
    status, body = p.get("/nothing")
    assert status == 404 and set(body["error"]) == {"code", "message", "next", "blame", "retry"}
    text = p.get("/metrics")[1]
    assert text.endswith("# EOF\n")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples and all(line.startswith(("kvplane_", "inferencecache_")) for line in samples)
    assert any(re.match(r'kvplane_\w+\{[^}]*engine="e0"[^}]*tier="device"[^}]*\} 1$', line) for line in samples), text
    assert "70001" not in text
