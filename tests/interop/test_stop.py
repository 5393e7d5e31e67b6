"""SIGTERM while a stream is busy with a batch: the process ends within the drain timeout and a second."""

import json
import signal
import time

from conftest import flag

from harness.wait import eventually
from harness.wire import NEWEST as V

DRAIN = 0.2
BUSY_MACHINE = 1.0  # what a loaded machine may add
STORES = 400_000  # applied in one piece: with the tests' build that takes seconds


def test_a_busy_stream_does_not_hold_up_a_stop(plane, engine, report):
    one = engine()
    served = plane(args=["--drain-timeout", f"{DRAIN * 1000:.0f}ms", "--engine", flag(one, id="e0", model="m")])
    served.wait_live("e0")
    one.publish(V.stored([1], None, [1], 1))
    served.wait_at(one.next_sequence - 1, "e0")
    one.publish(*(V.stored([at + 2], None, [at % 30_000], 1) for at in range(STORES)))

    def busy():
        return served.status("e0").get("read_before_ms") is not None

    eventually(busy, "the stream is busy", 30)
    began = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    code = served.process.wait(timeout=60)
    took = time.monotonic() - began
    report(f"stop: {took:.2f} s with a stream that is busy, drain timeout {DRAIN} s")
    assert code == 0
    assert took <= DRAIN + 1.0 + BUSY_MACHINE
    if "stopped" not in served.log():
        records = [json.loads(line) for line in served.log().splitlines()]
        (cut_off,) = [record for record in records if record["message"].startswith("stop timeout reached")]
        assert cut_off["busy_streams"] == "e0/0"
