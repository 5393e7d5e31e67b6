"""Forks, and the interpreter's lock: what others of this process, and of the next, are held up by."""

import os
import subprocess
import sys
import threading

import pytest

import kvplane

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@needs_fork
@pytest.mark.parametrize("end", ["os._exit(7)", "del calls, recorder, index, server; gc.collect(); os._exit(7)", "sys.exit(7)"])
def test_what_was_made_before_a_fork_is_left_alone_after_it(end):
    """Forked again and again while a thread is inside of calls, so that some child gets every lock as it is when it is held."""
    run(f"""
import gc, os, sys, threading, urllib.request, warnings, kvplane

warnings.simplefilter("ignore", DeprecationWarning)
recorder, index, stop = kvplane.Recorder("e", 0, 2), kvplane.Index(), threading.Event()
recorder.apply_cleared(None)
index.add(recorder, "m")
server = kvplane.serve_recovery(recorder)
calls = [
    lambda: recorder.apply_cleared(None), lambda: recorder.apply_frame(None, b""[:0]), recorder.get_events_json, recorder.snapshot,
    recorder.digest, recorder.status, lambda: kvplane.serve_recovery(recorder), lambda: index.add(recorder, "m"),
    lambda: index.remove(recorder), lambda: index.query("m", [1]), index.models,
]

def busy():
    number = 0
    while not stop.is_set():
        number += 1
        recorder.apply_stored(None, None, [number], [number, number])
        recorder.get_events_json(0)
        index.query("m", [number, number, 1])

worker = threading.Thread(target=busy)
worker.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                call()
            except kvplane.ClosedError as error:
                assert error.code == "shutting_down" and "another process" in str(error)
            else:
                os._exit(8)
        assert "e/0" in repr(recorder) and recorder.engine == "e" and server.port in range(65536)
        with server, recorder:
            pass
        with kvplane.Recorder("f") as own, kvplane.serve_recovery(own):
            own.apply_cleared(None)
        {end}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
stop.set()
worker.join()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
with opener.open(server.url, timeout=30) as answer:
    assert answer.status == 200
assert index.query("m", [1, 1, 1]).trust == "exact"
server.shutdown()
""")


def blocks(count):
    return list(range(1, count + 1)), [token for token in range(1, count + 1) for _ in range(2)]


@pytest.fixture(scope="module")
def large():
    recorder = kvplane.Recorder("e", 0, 2)
    recorder.apply_stored(1, None, *blocks(50_000))
    index = kvplane.Index()
    index.add(recorder, "m")
    return recorder, index


@pytest.mark.parametrize("call", ["snapshot", "get_events_json", "to_json", "len", "apply_frame", "query"])
def test_others_run_while_a_call_works(large, call):
    recorder, index = large
    snapshot = recorder.snapshot()
    hashes, tokens = blocks(20_000)
    frame = kvplane.encode([{"type": "BlockStored", "block_hashes": hashes, "token_ids": tokens, "block_size": 2}])
    prompt = blocks(50_000)[1]
    calls = {
        "snapshot": recorder.snapshot,
        "get_events_json": recorder.get_events_json,
        "to_json": snapshot.to_json,
        "len": lambda: len(snapshot),
        "apply_frame": lambda: kvplane.Recorder("f", 0, 2).apply_frame(0, frame),
        "query": lambda: index.query("m", prompt),
    }

    def ran_meanwhile():
        """Whether a thread that was woken before the call has run when it returns: only if the call let it."""
        go, ran = threading.Event(), []
        other = threading.Thread(target=lambda: (go.wait(), ran.append(True)))
        other.start()
        go.set()
        calls[call]()
        seen = bool(ran)
        other.join()
        return seen

    interval = sys.getswitchinterval()
    # Longer than everything here: nobody is made to give the lock up.
    sys.setswitchinterval(1_000.0)
    try:
        # The system need not wake the thread within one call, however long that is.
        assert any(ran_meanwhile() for _ in range(200))
    finally:
        sys.setswitchinterval(interval)
