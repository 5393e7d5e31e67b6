"""The worked examples, run."""

import json
import logging
import queue
import struct
import threading

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from fastapi_recovery import add_recovery
from planes import eventually
from router import Replica, told_by
from vllm_tee import AllBlocksCleared, BlockRemoved, BlockStored, RecordingPublisher

import kvplane


def stored(*hashes, parent=None):
    return BlockStored(list(hashes), parent, [hash % 1_000 for hash in hashes for _ in range(4)], 4, medium="GPU")


def test_a_tee_records_what_is_published_before_it_is_sent():
    recorder = kvplane.Recorder("vllm-0", block_size=4)
    sent = queue.Queue()

    def send(frames):
        topic, sequence, payload = frames
        (sequence,) = struct.unpack(">Q", sequence)
        # Whoever hears it can recover to it.
        sent.put((topic, sequence, payload, recorder.status()["last_event_id"]))

    publisher = RecordingPublisher(recorder, send, b"kv")
    publisher.publish(stored(1, 2))
    publisher.publish(stored(3, parent=2), BlockRemoved([1], "GPU"))
    publisher.publish(AllBlocksCleared())
    publisher.publish(stored(9))
    publisher.shutdown()
    frames = [sent.get_nowait() for _ in range(4)]
    assert [(topic, sequence, last) for topic, sequence, _, last in frames] == [(b"kv", n, n) for n in range(4)]

    replica = Replica(recorder.get_events_json, recorder.worker_id)
    replica.recover()
    assert {hash for _, hash in replica.held()} == {9}
    assert replica.held() == told_by(recorder.snapshot())
    # What was published is what was recorded.
    again = kvplane.Recorder("vllm-0", block_size=4)
    for _, sequence, payload, _ in frames:
        again.apply_frame(sequence, payload)
    assert again.digest() == recorder.digest()


def test_a_tee_that_cannot_record_still_publishes(caplog):
    recorder = kvplane.Recorder("vllm-0", block_size=4)
    sent = queue.Queue()
    publisher = RecordingPublisher(recorder, sent.put)
    publisher.publish(stored(1))
    sent.get(timeout=10)
    recorder.shutdown()
    with caplog.at_level(logging.WARNING):
        publisher.publish(stored(2))
        publisher.shutdown()
    assert sent.qsize() == 1
    assert "batch 1 is not recorded" in caplog.text and "ClosedError" in caplog.text


def test_a_tee_survives_whatever_its_recorder_raises(caplog):
    class Broken:
        rank = 0

        def apply_frame(self, seq, payload):
            raise RuntimeError("of the recorder")

    sent = queue.Queue()
    publisher = RecordingPublisher(Broken(), sent.put)
    for number in range(3):
        publisher.publish(stored(number + 1))
    publisher.shutdown()
    assert sent.qsize() == 3 and "of the recorder" in caplog.text


def test_a_tee_never_waits_and_what_it_drops_is_a_gap():
    recorder = kvplane.Recorder("vllm-0", block_size=4)
    sending, go_on, numbers = threading.Event(), threading.Event(), []

    def send(frames):
        numbers.append(int.from_bytes(frames[1], "big"))
        sending.set()
        go_on.wait()

    publisher = RecordingPublisher(recorder, send, room=2)
    publisher.publish(stored(1))
    assert sending.wait(15)
    for number in range(1, 6):
        publisher.publish(stored(number + 1))  # two of them wait, three find no room
    assert publisher.dropped == 3
    go_on.set()
    eventually(lambda: len(numbers) == 3, lambda: f"{numbers}")
    publisher.publish(stored(9))
    publisher.shutdown()
    assert numbers == [0, 1, 2, 6]
    status = recorder.status()
    assert (status["trust"], status["reasons"], status["gaps"]) == ("lower", ["gap"], 1)
    assert [block["block_hash"] for block in recorder.snapshot()] == [9]


@pytest.fixture
def application():
    recorder = kvplane.Recorder("vllm-0", block_size=4)
    recorder.apply_stored(1, None, [1], [1, 2, 3, 4])
    app = FastAPI()
    add_recovery(app, recorder)
    with TestClient(app) as client:
        yield recorder, client


def test_an_application_that_answers_for_the_recorder(application):
    recorder, client = application
    for question in ({}, {"start": 1}, {"start": 2}, {"start": 5, "end": 4}):
        answer = client.get("/kv_recover", params=question)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.text == recorder.get_events_json(**question)
    assert client.get("/kv_recover", params={"engine": "vllm-0", "rank": 0, "start": 1}).text == recorder.get_events_json(1)
    for question, status in (
        ({"start": -1}, 400), ({"start": "x"}, 400), ({"end": 2**64}, 400), ({"rank": "x"}, 400), ({"engine": "f"}, 404), ({"rank": 1}, 404),
    ):
        answer = client.get("/kv_recover", params=question)
        assert (answer.status_code, list(answer.json())) == (status, ["Error"]), question
    recorder.shutdown()
    answer = client.get("/kv_recover")
    assert answer.status_code == 503 and list(json.loads(answer.text)) == ["Error"]
