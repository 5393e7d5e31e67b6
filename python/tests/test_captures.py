"""What real engines published, through `apply_frame` and through a served plane: both answer the same."""

import json

import pytest
from harness.captures import Capture
from harness.wait import eventually
from router import told_by

import kvplane

CAPTURES = [
    ("vllm-0.32.0", "vllm"),
    ("vllm-0.32.0-oracle", "vllm"),
    ("vllm-0.32.0-hybrid-oracle", "vllm"),
    ("sglang-0.5.23", "sglang"),
]


def told(events):
    """What a consumer is told, without numbers: those of a plane are its own."""
    return [(event["worker_id"], event["storage_tier"], event["event"]["dp_rank"], event["event"]["data"]) for event in events]


@pytest.mark.parametrize(("name", "kind"), CAPTURES)
def test_a_recorder_answers_as_a_plane_does(served, name, kind):
    capture = Capture(name)
    engine, plane = served(capture.topic, kind)
    recorder = kvplane.Recorder("e", kind=kind)
    for sequence, payload in enumerate(capture.payloads):
        assert engine.publish_payload(payload) == sequence
        assert recorder.apply_frame(sequence, payload) == sequence
    status = plane.wait_at(len(capture.payloads) - 1)
    ours = recorder.status()
    assert (ours["digest"], ours["trust"]) == (status["digest"], status["trust"])
    assert recorder.snapshot().digest == status["digest"]

    # A busy machine may make the plane wait for a sign of life in between.
    served_dump = eventually(lambda: plane.recover()[1].get("TreeDump"), "a dump")
    dump = json.loads(recorder.get_events_json())["TreeDump"]
    assert dump["last_event_id"] == len(capture.payloads) - 1
    assert told(dump["events"]) == told(served_dump["events"])
    assert dump["reset_scope"] == served_dump["reset_scope"]

    first = (status["epoch"] << 20) + 1
    served_events = eventually(lambda: plane.recover(start=first)[1].get("Events"), "events")
    events = json.loads(recorder.get_events_json(0))["Events"]
    nothing = {"removed": {"block_hashes": []}}
    assert [one for one in told(events["events"]) if one[3] != nothing] == told(served_events["events"])
    assert {event["event"]["event_id"] for event in events["events"]} == set(range(len(capture.payloads)))


@pytest.mark.parametrize(("name", "kind"), CAPTURES)
def test_events_by_call_are_what_frames_say(name, kind):
    """Every event of a capture, decoded and handed over by itself."""
    capture = Capture(name)
    by_frame, by_call = (kvplane.Recorder("e", kind=kind) for _ in range(2))
    for sequence, payload in enumerate(capture.payloads):
        by_frame.apply_frame(sequence, payload)
        for event in kvplane.decode(payload)["events"]:
            kind_of_event = event.pop("type")
            if kind_of_event == "BlockStored":
                blocks = [event.pop(name) for name in ("parent_block_hash", "block_hashes", "token_ids")]
                by_call.apply_stored(None, *blocks, **event)
            elif kind_of_event == "BlockRemoved":
                by_call.apply_removed(None, event.pop("block_hashes"), **event)
            else:
                assert kind_of_event == "AllBlocksCleared"
                by_call.apply_cleared(None)
    assert by_call.digest() == by_frame.digest()
    assert told_by(by_call.snapshot()) == told_by(by_frame.snapshot())
