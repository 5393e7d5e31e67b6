"""The durable journal: kvplane is killed, and goes on where it was. Engines and subscribers are Python's."""

import json
import os
import signal
import stat
import subprocess
import threading
import time

import pytest
from conftest import flag

from harness.plane import clean_environment, run
from harness.replica import digest
from harness.wait import eventually
from harness.wire import NEWEST as V
from test_grpc import Subscriber, channel, follows, root, subscribe  # noqa: F401 - fixtures


def batch(n):
    """Two blocks come, and two of a while ago go."""
    events = [V.stored([2 * n + 1, 2 * n + 2], None, [n % 1000] * 8, 4)]
    return [*events, V.removed([2 * n - 99, 2 * n - 98])] if n >= 50 else events


class Kept:
    """A plane with a journal, which is killed and started again."""

    def __init__(self, plane, tmp_path, *engines, more=(), **options):
        self.make, self.dir, self.words = plane, tmp_path / "journal", []
        for at, one in enumerate(engines):
            self.words += ["--engine", flag(one, at, **options)]
        self.words += ["--set", f"journal.dir={self.dir}", *more]
        self.now = None

    def start(self):
        self.now = self.make(args=self.words)
        return self.now

    def kill(self):
        self.now.process.send_signal(signal.SIGKILL)
        self.now.process.wait()

    def journal(self):
        return self.now.get("/v1/status")[1]["journal"]


def resume(stubs, replica, engine="e0", wrong=False):
    """Where a subscriber goes on, with the digest of what it has."""
    low, high = digest(replica.held)
    cursor = stubs.Cursor(epoch=replica.epoch, sequence=replica.sequence, digest=stubs.Digest(low=low ^ wrong, high=high))
    return {"streams": [stubs.StreamSelector(engine=engine, rank=0, resume=cursor)]}


def go_on(subscriber, subscribe, plane, stubs, **options):  # noqa: F811
    """The same replica, over a new subscription."""
    again = subscribe(plane, **resume(stubs, subscriber.replica, **options))
    again.replica = subscriber.replica
    return again


def test_a_kill_loses_nothing_and_resets_nobody(engine, plane, tmp_path, subscribe, stubs):  # noqa: F811
    one = engine(buffer_steps=50)
    kept = Kept(plane, tmp_path, one)
    first = kept.start()
    first.wait_live()
    for n in range(200):
        last = one.publish(*batch(n))
    before = first.wait_at(last)
    s = subscribe(first)
    s.until_at(last)
    kept.kill()
    # What it publishes meanwhile is in its ring, and what was before is not any more.
    for n in range(200, 240):
        last = one.publish(*batch(n))
    second = kept.start()
    after = second.wait_at(last)
    assert (after["epoch"], after["trust"], after["known_from"]) == (before["epoch"], before["trust"], before["known_from"])
    assert int(after["cursor"]) > int(before["cursor"])
    s = go_on(s, subscribe, second, stubs)
    replica = s.until(lambda r: r.engine_sequence == last and r.continuity == "live")
    assert set(s.kinds()) == {"batch"} and (replica.resets, replica.trust) == (["START"], "exact")
    assert replica.copies == second.copies()
    # The engine's ring was asked from the last batch on, which proved that it is the same.
    assert one.asked[-1] >= 199
    journal = kept.journal()
    assert (journal["state"], journal["restored_streams"], journal["void_streams"]) == ("on", 1, 0)
    # A state to begin with is the same, too.
    assert subscribe(second).until(lambda r: r.complete).copies == replica.copies


def test_a_plane_that_is_stopped_in_order_goes_on_too(engine, plane, tmp_path, subscribe, stubs):  # noqa: F811
    one, other = engine(), engine(has_replay=False)
    kept = Kept(plane, tmp_path, one, other)
    first = kept.start()
    for each in (one, other):
        first.wait_live(f"e{0 if each is one else 1}")
        for n in range(20):
            last = each.publish(*batch(n))
    before = first.wait_at(last, "e0")
    first.wait_at(last, "e1")
    s = subscribe(first, streams=[stubs.StreamSelector(engine="e0")])
    s.until_at(last)
    assert first.stop() == 0
    second = kept.start()
    after = second.wait_at(last, "e0")
    assert after["epoch"] == before["epoch"] and not kept.journal()["incomplete"]
    s = go_on(s, subscribe, second, stubs)
    last = one.publish(*batch(20))
    assert s.until_at(last).resets == ["START"]


def test_an_engine_that_restarted_meanwhile_is_another_life(engine, plane, tmp_path, subscribe, stubs):  # noqa: F811
    one = engine()
    kept = Kept(plane, tmp_path, one)
    first = kept.start()
    first.wait_live()
    for n in range(20):
        last = one.publish(*batch(n))
    before = first.wait_at(last)
    s = subscribe(first)
    s.until_at(last)
    kept.kill()
    # It has overtaken the old numbers: only the bytes of the last batch tell.
    new = engine.keep(one.restarted(before=[(root(1000 + n),) for n in range(40)]))
    second = kept.start()
    after = second.wait_at(39)
    assert (after["epoch"] > before["epoch"], after["trust"]) == (True, "exact")
    assert second.held() == {1000 + n for n in range(40)}
    s = go_on(s, subscribe, second, stubs)
    last = new.publish(root(1))
    replica = s.until_at(last)
    assert replica.resets == ["START", "OTHER_EPOCH"] and replica.copies == second.copies()


def test_a_ring_that_was_cut_proves_nothing(engine, plane, tmp_path):
    one = engine(buffer_steps=10)
    kept = Kept(plane, tmp_path, one)
    first = kept.start()
    first.wait_live()
    for n in range(5):
        last = one.publish(*batch(n))
    before = first.wait_at(last)
    kept.kill()
    for n in range(5, 40):
        last = one.publish(*batch(n))
    after = kept.start().wait_at(last)
    assert (after["epoch"] > before["epoch"], after["trust"]) == (True, "lower")


def test_a_state_that_is_another_one_is_reset(engine, plane, tmp_path, subscribe, stubs):  # noqa: F811
    one = engine()
    p = plane(one)
    p.wait_live()
    for n in range(10):
        last = one.publish(*batch(n))
    s = subscribe(p)
    s.until_at(last)
    for wrong, resets in [(False, ["START"]), (True, ["START", "DIVERGED"])]:
        again = go_on(s, subscribe, p, stubs, wrong=wrong)
        last = one.publish(*batch(last + 1))
        assert again.until_at(last).resets == resets
        assert again.replica.copies == p.copies()


def test_killed_again_and_again_while_the_engine_is_busy(engine, plane, tmp_path, subscribe, stubs):  # noqa: F811
    one = engine(buffer_steps=100_000)
    kept = Kept(plane, tmp_path, one)
    running, published = threading.Event(), []
    running.set()

    def work():
        n = 0
        while running.is_set():
            published.append(one.publish(*batch(n)))
            n += 1
            # A pace at which a subscriber in Python does not fall out of the window.
            time.sleep(0.003)

    worker = threading.Thread(target=work)
    p = kept.start()
    p.wait_live()
    worker.start()
    s, epochs = None, set()
    try:
        for _ in range(6):
            s = go_on(s, subscribe, p, stubs) if s else subscribe(p)
            eventually(lambda: published, "the engine publishes")
            target = published[-1] + 50
            s.until(lambda r: r.engine_sequence is not None and r.engine_sequence >= target)
            epochs.add(s.replica.epoch)
            # Somewhere within a batch; what was read before it counts.
            kept.kill()
            p = kept.start()
    finally:
        running.clear()
        worker.join()
    s = go_on(s, subscribe, p, stubs)
    last = one.publish(*batch(one.next_sequence))
    replica = s.until_at(last)
    assert replica.resets == ["START"] and len(epochs) == 1
    p.wait_at(last)
    assert replica.copies == p.copies()


def test_a_journal_that_is_too_large_is_off_and_nothing_else(engine, plane, tmp_path, binary):
    one = engine()
    kept = Kept(plane, tmp_path, one, more=["--set", "journal.max_disk=64KiB"])
    p = kept.start()
    p.wait_live()
    n = 0
    while kept.journal()["state"] == "on":
        for _ in range(50):
            last = one.publish(*batch(n))
            n += 1
        p.wait_at(last)
        assert n < 100_000
    assert kept.journal()["reason"] == "limit"
    last = one.publish(*batch(n))
    p.wait_at(last)
    assert p.held() == {hash for hash in p.held()} and p.status()["trust"] == "exact"
    page = p.get("/metrics")[1]
    assert "kvplane_journal_on 0" in page and 'kvplane_journal_off{reason="limit"} 1' in page
    doctor = run(binary, "doctor", "--plane-only", "--server", p.http, "-o", "json")
    found = json.loads(doctor.stdout)["findings"]
    assert "journal_off" in [finding["code"] for finding in found], doctor.stdout
    # What is left is not gone on from.
    kept.kill()
    assert not [name for name in os.listdir(kept.dir) if name.endswith(".kvj")]
    assert kept.start().wait_at(last)["trust"] == "exact"


def test_a_directory_belongs_to_one_plane_and_is_nobody_elses_business(engine, plane, tmp_path, binary):
    kept = Kept(plane, tmp_path, engine())
    kept.start().wait_live()
    mode = {path: stat.S_IMODE(os.stat(path).st_mode) for path in (kept.dir, *kept.dir.iterdir())}
    assert mode.pop(kept.dir) == 0o700 and set(mode.values()) == {0o600}
    words = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--set", f"journal.dir={kept.dir}"]
    second = subprocess.run([binary, *words], capture_output=True, text=True, env=clean_environment(), timeout=30)
    assert second.returncode == 1 and "another kvplane has it" in second.stderr, second.stderr


def test_what_is_in_a_journal(engine, plane, tmp_path, binary):
    one = engine()
    kept = Kept(plane, tmp_path, one)
    p = kept.start()
    p.wait_live()
    secret = 424242
    for n in range(30):
        last = one.publish(V.stored([n + 1], None, [secret] * 4, 4))
    status = p.wait_at(last)

    def journal(*words):
        return run(binary, "journal", *words, "-o", "json")

    # While it is written, and after it is not.
    eventually(lambda: json.loads(journal("verify", kept.dir).stdout)["streams"][0]["cursor"] == status["cursor"], "all written")
    kept.kill()
    done = journal("verify", kept.dir)
    page = json.loads(done.stdout)
    (stream,) = page["streams"]
    assert done.returncode == 0 and (page["damaged"], page["closed"]) == ([], False)
    assert (stream["digest"], stream["blocks"], stream["engine_sequence"]) == (status["digest"], 30, last)
    assert json.loads(journal("ls", kept.dir).stdout)["streams"][0]["engine"] == "e0"
    printed = journal("cat", kept.dir, "--engine", "e0").stdout
    batches = [line for line in map(json.loads, printed.splitlines()) if line.get("step") == "batch"]
    assert [line["engine_sequence"] for line in batches] == list(range(30)) and str(secret) not in printed
    assert not journal("cat", kept.dir, "--engine", "other").stdout
    for words in (["verify"], ["ls"], ["cat"]):
        assert "e0/0" in run(binary, "journal", *words, kept.dir).stdout

    # A step that is damaged is a stream that begins anew, from what the ring has.
    (file,) = [path for path in kept.dir.iterdir() if path.suffix == ".kvj"]
    content = bytearray(file.read_bytes())
    content[batches[10]["offset"] + 40] ^= 1
    file.write_bytes(content)
    (kept.dir / "00000002.kvj").write_bytes(b"")
    assert journal("verify", kept.dir).returncode == 1
    second = kept.start()
    after = second.wait_at(last)
    assert after["epoch"] > status["epoch"] and after["trust"] == "exact"


def test_a_directory_that_is_none(binary, tmp_path):
    done = run(binary, "journal", "verify", tmp_path / "nothing")
    assert done.returncode == 1 and "cannot read" in done.stderr


@pytest.mark.parametrize("rule", ["always", "off", "5ms"])
def test_every_rule_of_syncing(engine, plane, tmp_path, rule):
    one = engine()
    kept = Kept(plane, tmp_path, one, more=["--set", f"journal.sync={rule}"])
    p = kept.start()
    p.wait_live()
    for n in range(20):
        last = one.publish(*batch(n))
    before = p.wait_at(last)
    kept.kill()
    assert kept.start().wait_at(last)["epoch"] == before["epoch"]
