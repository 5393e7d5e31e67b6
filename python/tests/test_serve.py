"""Recovery over HTTP, from a thread of its own."""

import errno
import json
import os
import socket
import threading
import urllib.error
import urllib.request

import pytest
from harness.plane import http

import kvplane


@pytest.fixture
def recorder():
    with kvplane.Recorder("e", 3, 2) as one:
        for number in range(1, 5):
            one.apply_stored(number, None, [number], [number, number])
        yield one


def text(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        assert response.headers["content-type"] == "application/json"
        return response.read().decode()


def test_the_same_over_http(recorder):
    with kvplane.serve_recovery(recorder) as server:
        assert server.host == "127.0.0.1" and server.port > 0
        assert server.url == f"http://127.0.0.1:{server.port}/kv_recover"
        for query, question in (("", ()), ("?start=2", (2,)), ("?start=5&end=9", (5, 9)), ("?start=5&end=4", (5, 4)), ("?start=99", (99,))):
            assert text(server.url + query) == recorder.get_events_json(*question), query
        assert text(server.url + "?engine=e&rank=3&start=4") == recorder.get_events_json(4)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/kv_recover?start=-1", 400), ("/kv_recover?start=x", 400), (f"/kv_recover?end={2**64}", 400), ("/kv_recover?engine=f", 404),
     ("/kv_recover?rank=0", 404), ("/", 404), ("/metrics", 404)],
)
def test_refusals_have_the_shape_that_the_caller_reads(recorder, path, status):
    with kvplane.serve_recovery(recorder, port=0) as server:
        got, answer = http("GET", f"http://127.0.0.1:{server.port}{path}")
    assert got == status
    assert list(answer) == ["Error"] and isinstance(answer["Error"], str)


def test_a_recorder_that_was_shut_down_is_unavailable(recorder):
    with kvplane.serve_recovery(recorder) as server:
        recorder.shutdown()
        assert http("GET", server.url) == (503, {"Error": "the recorder was shut down"})


def test_after_shutdown_nobody_listens(recorder):
    server = kvplane.serve_recovery(recorder, "127.0.0.1", 0)
    # A connection that was never used does not hold it up.
    with socket.create_connection((server.host, server.port)):
        server.shutdown()
    server.shutdown()
    with pytest.raises(urllib.error.URLError):
        text(server.url)
    # The port is free again.
    with kvplane.serve_recovery(recorder, "127.0.0.1", server.port) as again:
        assert again.port == server.port


def test_a_server_that_nobody_holds_any_more_ends(recorder):
    server = kvplane.serve_recovery(recorder)
    url = server.url
    assert text(url) == recorder.get_events_json()
    del server
    with pytest.raises(urllib.error.URLError):
        text(url)


def test_a_port_that_is_taken_is_an_error_at_once(recorder):
    with kvplane.serve_recovery(recorder) as server, pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}") as raised:
        kvplane.serve_recovery(recorder, port=server.port)
    assert isinstance(raised.value, kvplane.ListenError) and raised.value.code == "unavailable"
    assert (raised.value.errno, raised.value.strerror) == (errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def test_a_host_that_nobody_knows_is_an_error_at_once(recorder):
    with pytest.raises(kvplane.ListenError, match="cannot listen on nobody.invalid:0"):
        kvplane.serve_recovery(recorder, "nobody.invalid")


@pytest.mark.parametrize(("options", "argument"), [({"port": 65_536}, "port"), ({"port": -1}, "port"), ({"host": 5}, "host"), ({"port": "80"}, "port")])
def test_addresses_that_cannot_be_are_named(recorder, options, argument):
    with pytest.raises(kvplane.Error, match=f"^{argument}: ") as raised:
        kvplane.serve_recovery(recorder, **options)
    assert raised.value.argument == argument


def test_answers_while_the_engine_goes_on(recorder):
    """Writers and askers at the same time: every answer is whole, and not older than the one before it."""
    done, answered = threading.Event(), threading.Semaphore(0)
    seen = [[], []]

    def look(answers):
        while not done.is_set():
            dump = http("GET", server.url)[1]["TreeDump"]
            stored = [event["event"]["data"]["stored"]["blocks"] for event in dump["events"]]
            answers.append((dump["last_event_id"], {block["block_hash"] for blocks in stored for block in blocks}))
            answered.release()

    with kvplane.serve_recovery(recorder) as server:
        askers = [threading.Thread(target=look, args=(answers,)) for answers in seen]
        for asker in askers:
            asker.start()
        last = 4
        try:
            for _ in range(20):
                for last in range(last + 1, last + 51):
                    recorder.apply_stored(last, None, [last], [last, last])
                assert answered.acquire(timeout=30)
        finally:
            done.set()
            for asker in askers:
                asker.join()
        assert http("GET", server.url)[1]["TreeDump"]["last_event_id"] == last == 1_004
    for answers in seen:
        numbers = [number for number, _ in answers]
        assert numbers == sorted(numbers) and numbers[0] >= 4
        for number, hashes in answers:
            assert hashes == set(range(1, number + 1))
    assert len({number for answers in seen for number, _ in answers}) > 1


def test_beyond_loopback_a_line_says_who_can_read_it(recorder, caplog):
    with caplog.at_level("WARNING", "kvplane"):
        with kvplane.serve_recovery(recorder):
            assert caplog.records == []
        with kvplane.serve_recovery(recorder, "0.0.0.0") as server:
            (record,) = caplog.records
            assert record.getMessage() == f"anybody who reaches 0.0.0.0:{server.port} can read what e/3 holds"


def test_names_of_others_are_refused_on_loopback(recorder):
    with kvplane.serve_recovery(recorder) as server:
        request = urllib.request.Request(server.url, headers={"host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as raised:
            text(request)
    assert raised.value.code == 403 and list(json.load(raised.value)) == ["Error"]
