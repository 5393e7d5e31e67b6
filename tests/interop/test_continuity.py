"""What happens when frames, connections and engines go missing: every row of the fault table, with a Python engine."""

import time

import pytest

from harness.wait import eventually
from harness.wire import FIRST_MAPS, LAST_ARRAYS, NEWEST, OLDEST

V = NEWEST
BOTH_FRAMINGS = pytest.mark.parametrize("version", [LAST_ARRAYS, NEWEST], ids=str)


def root(hash, version=V):
    return version.stored([hash], None, [hash] * 4, 4)


def follows(hash, parent, version=V):
    return version.stored([hash], parent, [hash] * 4, 4)


# --- gaps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDEST, LAST_ARRAYS, FIRST_MAPS, NEWEST], ids=str)
def test_a_lost_eviction_is_fetched(engine, plane, version):
    one = engine(version)
    p = plane(one)
    one.publish(root(1, version), root(2, version))
    before = p.wait_at(0)
    one.publish(version.removed([1]), live=False)
    last = one.publish(root(3, version))
    after = p.wait_at(last)
    assert p.held() == {2, 3}
    assert (after["trust"], after["epoch"]) == ("exact", before["epoch"])
    assert (after["counters"]["gaps"], after["counters"]["gaps_unfilled"], after["counters"]["restarts"]) == (1, 0, 0)
    assert one.asked[-1] == 0, "asked from our last sequence, inclusive"


@BOTH_FRAMINGS
def test_a_gap_that_cannot_be_filled_fails_closed_and_heals(engine, plane, version):
    one = engine(version)
    p = plane(one)
    one.publish(root(1, version), follows(2, 1, version), root(7, version))
    before = p.wait_at(0)
    one.publish(version.removed([7]), live=False, ring=False)
    last = one.publish(root(3, version))
    after = p.wait_at(last)
    assert (after["trust"], after["reason"], after["known_from"]) == ("lower", "gap", last)
    assert after["epoch"] == before["epoch"]
    assert after["counters"]["gaps_unfilled"] == 1
    assert p.held() == {3}
    # A store on top of 2 proves that 1 and 2 are held; of 7 nobody knows.
    last = one.publish(follows(4, 2, version))
    healed = p.wait_at(last)
    assert healed["trust"] == "lower"
    assert healed["counters"]["proven_blocks"] == 2
    assert p.held() == {1, 2, 3, 4}
    assert all(copies == 1 for copies in p.copies().values())


def test_keep_is_the_operators_choice_and_is_said(engine, plane):
    one = engine()
    p = plane(one, args=["--set", "journal.on_gap=keep"])
    one.publish(root(1))
    p.wait_at(0)
    one.publish(V.removed([1]), live=False, ring=False)
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert (status["trust"], status["reason"]) == ("unsound", "gap_kept")
    assert p.held() == {1, 2}
    # Who cannot be told is told nothing.
    assert "unsound" in p.recover()[1]["Error"]


def test_a_gap_without_replay_fails_closed(engine, plane):
    one = engine(has_replay=False, synchronised=True)
    p = plane(one)
    eventually(one.has_subscriber, "a subscription")
    p.wait_live()
    one.publish(root(1))
    assert p.wait_at(0)["trust"] == "exact"
    one.publish(V.removed([1]), live=False)
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert status["trust"] == "lower"
    assert p.held() == {2}


def test_the_last_batch_before_a_silence_is_missed(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    last = one.publish(V.removed([1]), live=False)
    status = p.wait_at(last)
    assert (p.held(), status["trust"]) == (set(), "exact")


def test_duplicates_and_late_frames(engine, plane):
    one = engine(synchronised=True)
    p = plane(one)
    eventually(one.has_subscriber, "a subscription")
    one.publish(root(1), copies=3)
    p.wait_at(0)
    payload = one.ring[0][1]
    last = one.publish(V.stored([1], None, [1] * 4, 4))
    p.wait_at(last)
    one.send_live(0, payload)
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert status["counters"]["duplicates"] >= 3
    assert (status["counters"]["restarts"], status["trust"]) == (0, "exact")
    assert p.copies() == {("device", 0, 1): 2, ("device", 0, 2): 1}


@pytest.mark.parametrize("has_replay", [True, False], ids=["replay", "no-replay"])
def test_frames_out_of_order(engine, plane, has_replay):
    one = engine(has_replay=has_replay, synchronised=True)
    p = plane(one)
    eventually(one.has_subscriber, "a subscription")
    one.publish(root(1))
    before = p.wait_at(0)
    late = [V.encode(time.time(), [root(2)]), V.encode(time.time(), [V.removed([2])])]
    for payload in late:
        one.publish_payload(payload, live=False)
    one.send_live(2, late[1])
    one.send_live(1, late[0])
    status = p.wait_at(2)
    assert p.held() == {1}
    assert (status["trust"], status["epoch"]) == ("exact", before["epoch"])


@BOTH_FRAMINGS
def test_a_damaged_frame_is_fetched_whole(engine, plane, version):
    one = engine(version)
    p = plane(one)
    one.publish(root(1, version))
    before = p.wait_at(0)
    good = version.encode(time.time(), [root(2, version), version.removed([1])])
    last = one.publish_payload(good, on_the_wire=good[: len(good) // 2])
    status = p.wait_at(last)
    assert (status["trust"], status["epoch"]) == ("exact", before["epoch"])
    assert status["counters"]["undecodable_batches"] == 1
    assert p.held() == {2}


def test_a_batch_that_is_damaged_everywhere_is_lost(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    p.wait_at(0)
    one.publish_payload(b"\xc1 not msgpack")
    last = one.publish(root(2))
    status = p.wait_at(last)
    assert (status["trust"], status["reason"]) == ("lower", "undecodable")
    assert p.held() == {2}


# --- restarts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", [1, 3, 8], ids=["lower", "equal", "higher"])
@BOTH_FRAMINGS
def test_a_restart_is_proven_wherever_its_sequence_stands(engine, plane, version, batches):
    one = engine(version)
    p = plane(one)
    for n in range(3):
        one.publish(root(n, version))
    before = p.wait_at(2)
    # The new life computed some of the same prompts: equal hashes, under the same numbers.
    life = [[root(n, version)] for n in range(1, batches + 1)]
    one = engine.keep(one.restarted(before=life))
    after = p.wait(lambda s: s["epoch"] > before["epoch"] and s["last_sequence"] == batches - 1, "a new epoch")
    after = p.wait_at(batches - 1)
    assert (after["trust"], after["counters"]["restarts"]) == ("exact", 1)
    assert p.held() == set(range(1, batches + 1))
    last = one.publish(root(50, version))
    p.wait_at(last)
    assert 0 not in p.held(), "a block of the old life is back"


def test_a_restart_that_is_still_empty(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    before = p.wait_at(0)
    one = engine.keep(one.restarted())
    after = p.wait(lambda s: s["epoch"] > before["epoch"] and s["continuity"] == "live", "a new epoch")
    assert (after["trust"], after["last_sequence"], after["blocks"]["device"]) == ("exact", None, 0)
    one.publish(root(2))
    p.wait_at(0)
    assert p.held() == {2}


def test_a_restart_whose_ring_was_cut_above_ours_is_unproven(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    before = p.wait_at(0)
    one = engine.keep(one.restarted(before=[[root(n)] for n in range(10, 20)], buffer_steps=3))
    after = p.wait(lambda s: s["epoch"] > before["epoch"] and s["last_sequence"] == 9)
    assert (after["trust"], after["reason"], after["known_from"]) == ("lower", "unproven", 7)
    assert after["counters"]["unproven_epochs"] == 1
    assert p.held() == {17, 18, 19}


def test_a_restart_into_another_version(engine, plane):
    one = engine(OLDEST)
    p = plane(one)
    one.publish(root(1, OLDEST), follows(2, 1, OLDEST))
    before = p.wait_at(0)
    one = engine.keep(one.restarted(NEWEST, before=[[root(5)], [follows(6, 5)]]))
    after = p.wait(lambda s: s["epoch"] > before["epoch"] and s["last_sequence"] == 1)
    assert (after["trust"], p.held()) == ("exact", {5, 6})


def test_many_restarts_in_a_row(engine, plane):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    epochs = [p.wait_at(0)["epoch"]]
    for n in range(4):
        one = engine.keep(one.restarted(before=[[root(10 * n)], [root(10 * n + 1)]]))
        status = p.wait(lambda s: s["epoch"] > epochs[-1] and s["last_sequence"] == 1 and s["continuity"] == "live")
        epochs.append(status["epoch"])
        assert p.held() == {10 * n, 10 * n + 1}
    assert len(set(epochs)) == 5


# --- connections that come back ------------------------------------------------------------------------------


@BOTH_FRAMINGS
def test_a_reconnect_of_the_same_process_resets_nothing(engine, plane, version):
    one = engine(version)
    p = plane(one)
    one.publish(root(1, version), root(2, version))
    before = p.wait_at(0)
    one.reconnect(while_away=lambda: one.record(version.removed([1]), root(3, version)))
    after = p.wait(lambda s: s["last_sequence"] == 1 and s["continuity"] == "live", "the batch of the meantime")
    assert after["epoch"] == before["epoch"]
    assert after["trust"] == "exact"
    assert after["counters"]["disconnects"] >= 1
    assert (after["counters"]["restarts"], after["counters"]["unproven_epochs"]) == (0, 0)
    assert p.held() == {2, 3}


def test_a_reconnect_whose_ring_was_cut_is_unproven(engine, plane):
    one = engine(buffer_steps=2)
    p = plane(one)
    one.publish(root(1))
    before = p.wait_at(0)
    one.reconnect(while_away=lambda: [one.record(root(n)) for n in range(2, 7)])
    after = p.wait(lambda s: s["last_sequence"] == 5 and s["continuity"] == "live")
    assert after["epoch"] > before["epoch"]
    assert (after["trust"], after["reason"]) == ("lower", "unproven")
    assert p.held() == {5, 6}


def test_without_replay_a_reconnect_proves_nothing(engine, plane):
    one = engine(has_replay=False, synchronised=True)
    p = plane(one)
    eventually(one.has_subscriber, "a subscription")
    p.wait_live()
    one.publish(root(1))
    before = p.wait_at(0)
    one.reconnect()
    eventually(one.has_subscriber, "a subscription again")
    last = one.publish(root(2))
    after = p.wait_at(last)
    assert after["epoch"] > before["epoch"]
    assert (after["trust"], after["reason"], after["known_from"]) == ("lower", "unproven", 1)
    assert p.held() == {2}


@pytest.mark.parametrize("same", [True, False], ids=["unchanged", "changed"])
def test_without_replay_the_start_time_helps(engine, plane, metrics, same):
    one = engine(has_replay=False, synchronised=True)
    p = plane(one, http=metrics.url)
    eventually(lambda: one.has_subscriber() and metrics.asked, "a subscription and a question")
    p.wait_live()
    one.publish(root(1))
    before = p.wait_at(0)
    metrics.start_time += 0 if same else 60
    one.reconnect()
    eventually(one.has_subscriber, "a subscription again")
    last = one.publish(root(2))
    after = p.wait_at(last)
    assert (after["epoch"] == before["epoch"]) is same
    assert p.held() == ({1, 2} if same else {2})
    assert after["trust"] == ("exact" if same else "lower")


def test_as_many_copies_as_the_engine_has_blocks_is_everything(engine, plane, metrics):
    metrics.more = 'vllm:cache_config_info{block_size="4",num_gpu_blocks="4"} 1.0\n'  # one is the null block
    one = engine(buffer_steps=1)
    for n in range(3):
        one.publish(root(n))
    p = plane(one, http=metrics.url, device_only="true")
    status = p.wait_at(2)
    assert (status["trust"], status["known_from"]) == ("lower", 2)
    eventually(lambda: metrics.asked, "a question")
    assert p.wait_at(one.publish(root(3)))["trust"] == "lower"
    status = p.wait_at(one.publish(root(4)))
    assert (status["trust"], p.held()) == ("exact", {2, 3, 4})


def test_presence_instead_of_counts(engine, plane):
    one = engine()
    p = plane(one, duplicates="presence")
    one.publish(root(1), root(1), root(2))
    p.wait_at(0)
    assert p.copies() == {("device", 0, 1): 1, ("device", 0, 2): 1}
    p.wait_at(one.publish(V.removed([1])))
    assert p.held() == {2}


def test_a_block_size_that_contradicts_the_configuration_is_said(engine, plane):
    one = engine()
    p = plane(one, block_size=16)
    status = p.wait_at(one.publish(root(1)))
    assert (status["trust"], status["reason"], status["counters"]["block_size_contradictions"]) == ("unverified", "block_size", 1)


def test_a_state_that_outgrows_its_budget_is_lower_without_phantoms(engine, plane):
    one = engine()
    p = plane(one, args=["--set", "journal.max_state_bytes=64KiB"])
    for n in range(2000):
        last = one.publish(root(n))
    status = p.wait_at(last)
    assert (status["trust"], status["reason"]) == ("lower", "budget")
    assert status["state"]["bytes"] <= 65 << 10  # the block that fills it is still taken
    assert 0 < status["blocks"]["device"] < 2000
    for n in range(2000):
        last = one.publish(V.removed([n]))
    status = p.wait_at(last)
    assert (status["blocks"]["device"], p.held()) == (0, set())


def test_down_is_said_and_the_state_is_kept_for_a_return(engine, plane):
    one = engine()
    p = plane(one, args=["--set", "follow.down_after=300ms"])
    one.publish(root(1))
    before = p.wait_at(0)
    one.reconnect(while_away=lambda: p.wait(lambda s: s["continuity"] == "down", "down"))
    after = p.wait_live()
    assert (after["epoch"], after["trust"], p.held()) == (before["epoch"], "exact", {1})


def test_down_is_not_credited(engine, plane):
    one = engine()
    p = plane(one, args=["--set", "follow.down_after=300ms"])
    one.publish(root(1))
    p.wait_at(0)
    one.kill()
    p.wait(lambda s: s["continuity"] in ("recovering", "down"), "notices at once")
    assert list(p.recover()[1]) == ["Error"]
    p.wait(lambda s: s["continuity"] == "down")
    assert "down" in p.recover()[1]["Error"]
    assert p.get("/readyz?strict=1")[0] == 503


# --- replay sockets that misbehave ---------------------------------------------------------------------------

QUICK = ["--set", "follow.replay_idle=200ms", "--set", "follow.replay_deadline=1s"]


def test_a_replay_socket_that_never_answers_costs_its_own_stream_only(engine, plane):
    bad, good = engine(), engine()
    bad.mute = True
    bad.publish(root(1))
    good.publish(root(1))
    p = plane(bad, good, args=QUICK)
    assert p.wait_at(0, "e1")["trust"] == "exact"
    status = p.wait_live("e0")
    assert status["trust"] == "lower"
    last = bad.publish(root(2))
    status = p.wait_at(last, "e0")
    assert (status["trust"], status["reason"], status["known_from"]) == ("lower", "history", 1)
    assert p.held("e0") == {2}
    assert p.held("e1") == {1}


def answers_nonsense(engine, client, start):
    engine.reply_frames(client, b"", b"nonsense")


def answers_another_engines_frames(engine, client, start):
    engine.reply_frames(client, b"", b"a", b"b", b"c", b"d", b"e")
    engine.reply_frames(client, b"")
    engine.reply_frames(client, b"", b"topic", b"short", b"payload")


def answers_for_ever(engine, client, start):
    for _ in range(200):
        engine.reply(client, start, b"\x93")


def answers_half_and_ends(engine, client, start):
    wanted = [(s, p) for s, p in engine.ring if s >= start]
    for sequence, payload in wanted[: len(wanted) // 2]:
        engine.reply(client, sequence, payload)
    engine.reply_end(client)


@pytest.mark.parametrize(
    "answer", [answers_nonsense, answers_another_engines_frames, answers_for_ever, answers_half_and_ends],
    ids=lambda f: f.__name__,
)
def test_a_gap_with_a_replay_socket_that_talks_nonsense_fails_closed(engine, plane, answer):
    one = engine()
    p = plane(one, args=QUICK)
    for n in range(1, 5):
        one.publish(root(n))
    p.wait_at(3)
    one.answer = answer
    for n in range(1, 5):
        one.publish(V.removed([n]), live=False)
    one.publish(root(9))
    p.wait(lambda s: s["trust"] != "exact" and s["continuity"] == "live", "a verdict")
    assert not p.held() & {1, 2, 3, 4}, "phantoms"
    # The stream goes on.
    one.answer = None
    last = one.publish(root(10))
    p.wait_at(last)
    assert 10 in p.held()


def test_replay_in_reverse_order(engine, plane):
    def backwards(engine, client, start):
        for sequence, payload in reversed([(s, p) for s, p in engine.ring if s >= start]):
            engine.reply(client, sequence, payload)
        engine.reply_end(client)

    one = engine()
    one.answer = backwards
    for n in range(4):
        last = one.publish(root(n))
    p = plane(one, args=QUICK)
    status = p.wait_at(last)
    # Whatever it makes of that: no phantoms, and no claim that it does not keep.
    if status["trust"] == "exact":
        assert p.held() == {0, 1, 2, 3}
    else:
        assert p.held() <= {0, 1, 2, 3}


def test_live_batches_while_a_long_replay_runs(engine, plane):
    one = engine(before=[[root(n)] for n in range(2000)])
    p = plane(one)
    for n in range(2000, 2400):
        last = one.publish(V.removed([n - 2000]), root(n))
    status = p.wait_at(last)
    assert status["trust"] == "exact"
    assert p.held() == set(range(400, 2400))
