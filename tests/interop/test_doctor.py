"""`kvplane doctor` against publishers that are not ours, and from outside: what it prints, and with which exit code it ends."""

import json
import resource
import subprocess
import time
from contextlib import closing

import pytest
import zmq

from conftest import flag
from harness.plane import Plane, clean_environment, free_ports, run
from harness.wire import LAST_ARRAYS, NEWEST

V = NEWEST
#: Where something is heard, listening ends long before.
LONG = ["--listen", "30s"]
#: Where nothing can be heard.
SHORT = ["--listen", "500ms"]


def root(hash, version=V):
    return version.stored([hash], None, [hash] * 4, 4)


def look(binary, *words, meanwhile=None, env=None, limit=None):
    """Runs the doctor to its end, doing something again and again meanwhile. The findings by code, and the exit code."""

    def lower():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    command = [str(binary), "doctor", "-o", "json", *map(str, words)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env or clean_environment(), preexec_fn=lower if limit else None,
    )
    while meanwhile is not None and process.poll() is None:
        meanwhile()
        time.sleep(0.02)  # not to fill a ring; the doctor decides when it has heard enough
    out, error = process.communicate(timeout=60)
    assert out, error
    document = json.loads(out)
    counted = {}
    for finding in document["findings"]:
        assert set(finding) == {"code", "severity", "subject", "seen", "why", "todo"}
        assert all(finding.values()), finding
        counted[finding["severity"]] = counted.get(finding["severity"], 0) + 1
    names = {"errors": "error", "warnings": "warning", "infos": "info"}
    assert document["summary"] == {name: counted.get(severity, 0) for name, severity in names.items()}
    return {finding["code"]: finding for finding in document["findings"]}, process.returncode


def speaks(engine, version=V):
    """Publishes a new block at every turn."""
    hashes = iter(range(1, 1_000_000))
    return lambda: engine.publish(root(next(hashes), version))


@pytest.mark.parametrize("version", [V, LAST_ARRAYS], ids=["maps", "arrays"])
def test_a_publisher_that_is_well(binary, engine, version):
    one = engine(version, before=[[root(7_000_000, version)]])
    found, code = look(binary, "--engine", flag(one, model="llama"), *LONG, meanwhile=speaks(one, version))
    assert (found, code) == ({}, 0)
    assert one.asked == [0], "the ring is asked once"


def test_a_publisher_that_connects(binary, engine):
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    one = engine(events=address, connect=True, before=[[root(1)]])
    # libzmq connects to a name's IPv4 address, also where the name has another.
    for configured in (address, f"tcp://localhost:{port}"):
        words = ["--engine", f"vllm={configured},replay={one.replay},model=llama"]
        found, code = look(binary, *words, *LONG)
        assert (set(found), code) == ({"publisher_connects"}, 1)
        assert f"bind:{configured}" in found["publisher_connects"]["todo"]
    words = ["--engine", f"vllm=bind:{address},replay={one.replay},model=llama"]
    assert look(binary, *words, *LONG, meanwhile=speaks(one)) == ({}, 0)


def test_a_replay_socket_in_the_place_of_events_and_the_reverse(binary, engine):
    one = engine(before=[[root(1)]])
    found, code = look(binary, "--engine", f"vllm={one.replay},replay={one.events},model=llama", *SHORT)
    assert (set(found), code) == ({"wrong_socket"}, 1)


@pytest.mark.parametrize("kind", ["PULL", "SUB", "REP", "DEALER", "PAIR"])
def test_sockets_of_other_kinds_are_named(binary, kind):
    with zmq.Context() as context, context.socket(getattr(zmq, kind)) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        found, code = look(binary, "--engine", f"vllm=tcp://127.0.0.1:{port},model=llama", *SHORT)
    assert (set(found), code) == ({"wrong_socket", "replay_absent"}, 1)
    assert f"of type {kind} " in found["wrong_socket"]["seen"]


def test_a_socket_that_wants_a_password(binary):
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.plain_server = True
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        found, code = look(binary, "--engine", f"vllm=tcp://127.0.0.1:{port},model=llama", *SHORT)
    assert code == 1 and "PLAIN" in found["wrong_socket"]["seen"]


def test_another_topic(binary, engine):
    one = engine(topic="kv@10.0.0.1:8000@llama", before=[[root(1_000_000)]])
    words = ["--engine", f"vllm={one.events},replay={one.replay},topic=kv@a,model=llama"]
    found, code = look(binary, *words, *LONG, meanwhile=speaks(one))
    assert (set(found), code) == ({"topic_mismatch"}, 1)
    assert "kv@10.0.0.1:8000@llama" in found["topic_mismatch"]["todo"]


def test_frames_that_are_no_batches(binary, engine):
    one = engine(before=[[root(1)]])
    found, code = look(
        binary, "--engine", flag(one, model="llama"), *LONG, meanwhile=lambda: one.send_frames(b"", b"\0" * 8),
    )
    assert (set(found), code) == ({"unsupported_layout"}, 1)
    assert "frame_count" in found["unsupported_layout"]["seen"]


def test_warnings_fail_when_they_are_asked_to(binary, engine):
    one = engine(has_replay=False)
    words = ["--engine", flag(one, model="llama"), *SHORT]
    found, code = look(binary, *words)
    assert (set(found), code) == ({"silent", "replay_absent"}, 0)
    assert look(binary, *words, "--strict")[1] == 1


# --- configurations ------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "kvplane.toml"
        path.write_text(text)
        return path

    return write


def test_configurations_that_are_wrong(binary, config):
    for text, code, words in [
        ("[listen]\nhtpp = 1\n", "config_invalid", ["kvplane.toml:2", "htpp"]),
        ('[[engine]]\nid = "a"\nkind = "vllm"\nevents = "a:1"\n', "config_invalid", ["is not an address"]),
        ('[listen]\nhttp = "0.0.0.0:0"\n', "open_listener_without_roles", ["0.0.0.0"]),
        (
            '[[engine]]\nid = "a"\nkind = "vllm"\nevents = "tcp://127.0.0.1:1"\nreplay = "tcp://127.0.0.1:2"\nranks = 2\n',
            "replay_on_next_ranks_port", ["port 2"],
        ),
    ]:
        found, ended = look(binary, "--config", config(text))
        assert (list(found), ended) == ([code], 1), text
        for word in words:
            assert word in found[code]["seen"]


def test_a_configuration_without_fault_and_without_engines(binary, config):
    assert look(binary, "--config", config("[journal]\nmax_batches = 5\n")) == ({}, 0)
    done = run(binary, "doctor", "--config", config(""))
    assert (done.returncode, done.stdout) == (0, "0 engines: nothing is wrong\n")


def test_sockets_that_are_open_on_purpose(binary, config, engine):
    (port,) = free_ports(1)
    text = f'[[engine]]\nid = "a"\nkind = "vllm"\nmodel = "m"\nevents = "bind:tcp://0.0.0.0:{port}"\nevents_open = true\n'
    found, code = look(binary, "--config", config(text), *SHORT)
    assert set(found) == {"open_listener_without_roles", "endpoint_unreachable", "replay_absent"}
    assert (found["open_listener_without_roles"]["severity"], code) == ("warning", 1)


def test_too_few_descriptors(binary, config):
    found, code = look(binary, "--config", config(""), limit=256)
    assert (set(found), code) == ({"descriptor_limit"}, 0)
    assert found["descriptor_limit"]["severity"] == "info"
    assert "256" in found["descriptor_limit"]["seen"] and "LimitNOFILE" in found["descriptor_limit"]["todo"]


def test_as_many_engines_are_looked_at_together_as_descriptors_allow(binary, config):
    """One publisher under many topics: whoever cannot open another socket would not reach it."""
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        engines = "".join(
            f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "tcp://127.0.0.1:{port}"\ntopic = "kv@{at:03}"\n'
            for at in range(60)
        )
        found, code = look(binary, "--config", config(engines), *SHORT, limit=128)
    assert (set(found), code) == ({"silent", "replay_absent", "descriptor_limit"}, 0)
    assert found["descriptor_limit"]["severity"] == "info"


def test_configurations_that_serve_refuses_and_that_count_a_cache_twice(binary, config):
    (port,) = free_ports(1)
    for events, code in ((f"bind:tcp://127.0.0.1:{port}", "config_invalid"), (f"tcp://127.0.0.1:{port}", "shared_address")):
        engines = "".join(f'[[engine]]\nid = "{id}"\nkind = "vllm"\nmodel = "m"\nevents = "{events}"\n' for id in "ab")
        found, status = look(binary, "--config", config(engines), *SHORT)
        assert status == 1 and {"config_invalid", "shared_address"} & set(found) == {code}, found


def test_wrong_usage(binary):
    for words in (["--engine", "vllm"], ["--engine", "vlm=tcp://a:1"], ["--listen", "1"], ["--listen", "2h"], ["--server", "ftp://x"]):
        done = run(binary, "doctor", *words)
        assert (done.returncode, done.stdout) == (2, ""), (words, done.stderr)


# --- running planes ------------------------------------------------------------------------------------------


def test_a_running_plane(binary, engine, plane):
    one = engine(before=[[root(1)]])
    p = plane(one, model="llama")
    p.wait_live("e0")
    assert look(binary, "--server", p.http, *LONG, meanwhile=speaks(one)) == ({}, 0)
    asked = len(one.asked)
    assert look(binary, "--server", p.http, "--plane-only") == ({}, 0)
    assert len(one.asked) == asked, "the engine is not looked at"
    one.kill()
    p.wait(lambda status: status["continuity"] != "live", engine="e0")
    p.wait(lambda status: status["trouble"] is not None, engine="e0")
    for words in ([], ["--plane-only"]):
        found, code = look(binary, "--server", p.http, *SHORT, *words)
        assert ("endpoint_unreachable" in found, code) == (True, 1)


def test_what_only_engines_know_is_found_by_way_of_a_running_plane(binary, engine, plane):
    one = engine(topic="kv@b", before=[[root(1_000_000)]])
    p = plane(args=["--engine", f"vllm={one.events},replay={one.replay},topic=kv@a,model=llama,id=e0"])
    found, code = look(binary, "--server", p.http, *LONG, meanwhile=speaks(one))
    assert code == 1 and "kv@b" in found["topic_mismatch"]["todo"]
    assert found["topic_mismatch"]["subject"] == "e0/0"
    assert "topic_mismatch" not in look(binary, "--server", p.http, "--plane-only")[0]


def test_a_plane_that_is_open_is_found_from_loopback_with_a_token_and_without(binary):
    with closing(Plane(binary, "--insecure", http="0.0.0.0:0")) as p:
        server = f"http://127.0.0.1:{p.http.rsplit(':', 1)[1]}"
        for token in ({}, {"KVPLANE_TOKEN": "a-token-of-some-length"}):
            found, code = look(binary, "--server", server, env=clean_environment(**token))
            assert (set(found), code) == ({"open_listener_without_roles"}, 1)
            assert found["open_listener_without_roles"]["subject"] == "listen.http"


def test_passwords_in_addresses_are_not_shown(binary, config):
    (port,) = free_ports(1)
    for words in (
        ["--server", f"http://name:secret@127.0.0.1:{port}"],
        ["--engine", f"trtllm=http://name:secret@127.0.0.1:{port},model=m"],
    ):
        done = run(binary, "doctor", *words, *SHORT)
        assert done.returncode == 1 and f"127.0.0.1:{port}" in done.stdout
        assert "secret" not in done.stdout + done.stderr
    wrong = config('[[engine]]\nid = "e"\nkind = "vllm"\nevents = "http://name:secret@127.0.0.1:1"\nhttp = "http://name:secret@:x"\n')
    done = run(binary, "doctor", "--config", wrong, *SHORT)
    assert done.returncode == 1 and "config_invalid" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_a_plane_whose_stream_is_not_exact(binary, engine, plane):
    one = engine(has_replay=False, synchronised=True)
    one.next_sequence = 5
    p = plane(one, model="llama")
    p.wait_live("e0")
    p.wait_at(one.publish(root(1)), "e0")
    found, code = look(binary, "--server", p.http, *SHORT)
    assert (set(found), code) == ({"stream_not_exact", "replay_absent"}, 0)
    assert "before the first batch" in found["stream_not_exact"]["seen"]


def test_no_plane_and_one_that_wants_a_key(binary, plane, tmp_path):
    (port,) = free_ports(1)
    found, code = look(binary, "--server", f"http://127.0.0.1:{port}")
    assert (set(found), code) == ({"plane_unreachable"}, 1)
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    (tmp_path / "token").chmod(0o600)
    token = f'auth.token=[{{ name = "reader", role = "read", file = "{tmp_path / "token"}" }}]'
    p = plane(args=["--set", token])
    found, code = look(binary, "--server", p.http)
    assert (set(found), code) == ({"plane_unauthorised"}, 1)
    assert look(binary, "--server", p.http, "--token-file", tmp_path / "token") == ({}, 0)
