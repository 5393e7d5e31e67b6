"""`Index`: who holds how much of a prompt, among recorders of this process."""

import gc
import random
import threading

import pytest

import kvplane

BLOCK = 4


def tokens(prompt, blocks):
    """Prompts share their first two blocks."""
    return [(0 if at < 2 else prompt + 1) * 1_000 + at * BLOCK + i for at in range(blocks) for i in range(BLOCK)]


def hashes(prompt, blocks):
    return [(0 if at < 2 else prompt + 1) * 1_000 + at + 1 for at in range(blocks)]


def store(recorder, prompt, blocks):
    recorder.apply_stored(None, None, hashes(prompt, blocks), tokens(prompt, blocks))


def recorder(name, **options):
    return kvplane.Recorder(name, 0, BLOCK, **options)


def held(index, prompt, blocks=8, **details):
    answer = index.query("m", [*tokens(prompt, blocks), 9], all=True, **details)
    return {(found.engine, found.rank): found.tokens for found in answer.matches}


def test_who_holds_how_much():
    index = kvplane.Index()
    one, other = recorder("a"), recorder("b")
    index.add(one, "m")
    index.add(other, "m")
    store(one, 0, 5)
    store(other, 1, 6)
    assert held(index, 0) == {("a", 0): 20, ("b", 0): 8}
    answer = index.query("m", [*tokens(1, 6), 9])
    assert [found.engine for found in answer.best] == ["b"]
    assert (answer.best[0].tokens, answer.best[0].trust, answer.trust) == (24, "exact", "exact")
    assert answer.as_dict()["best"] == [{"engine": "b", "rank": 0}]
    assert index.models() == ["m"]


def test_adapters_and_salts_keep_prompts_apart():
    index, one = kvplane.Index(), recorder("a")
    index.add(one, "m")
    one.apply_stored(None, None, [1, 2], tokens(0, 2), lora_name="l", cache_salt="s")
    assert held(index, 0) == {("a", 0): 0}
    assert held(index, 0, lora_name="l") == {("a", 0): 0}
    assert held(index, 0, lora_name="l", cache_salt="s") == {("a", 0): 8}


def test_a_recorder_that_comes_late_brings_what_it_holds():
    index, one = kvplane.Index(), recorder("a")
    for prompt in range(4):
        store(one, prompt, 4 + prompt)
    one.apply_removed(None, hashes(1, 5)[4:])
    index.add(one, "m")
    assert [held(index, prompt)["a", 0] for prompt in range(4)] == [16, 16, 24, 28]
    store(one, 1, 5)
    assert held(index, 1) == {("a", 0): 20}
    one.apply_cleared(None)
    assert held(index, 2) == {("a", 0): 0}


@pytest.mark.parametrize("window", [1, 10_000])
def test_a_recorder_that_comes_while_it_records(window):
    """Whatever the moment, nothing is missing and nothing is left behind, however few events are kept."""
    late, always = kvplane.Index(), kvplane.Index()
    one, twin = recorder("a", max_events=window), recorder("a")
    always.add(twin, "m")
    done = threading.Event()

    def record():
        dice = random.Random(5)
        for _ in range(3_000):
            prompt, blocks = dice.randrange(40), dice.randrange(3, 9)
            for target in (one, twin):
                store(target, prompt, blocks)
                if prompt % 3 == 0:
                    target.apply_removed(None, hashes(prompt, blocks)[2:])
        done.set()

    thread = threading.Thread(target=record)
    thread.start()
    joins = 0
    while joins < 20 or not done.is_set():
        late.add(one, "m")
        assert late.remove(one)
        joins += 1
    thread.join()
    late.add(one, "m")
    for prompt in range(40):
        assert held(late, prompt) == held(always, prompt)


def test_a_gap_is_not_credited_as_if_nothing_had_happened():
    index, one = kvplane.Index(credit=["exact"]), recorder("a", on_gap="keep")
    index.add(one, "m")
    one.apply_stored(0, None, hashes(0, 3), tokens(0, 3))
    assert held(index, 0) == {("a", 0): 12}
    one.apply_stored(5, hashes(0, 3)[-1], hashes(0, 4)[3:], tokens(0, 4)[12:])
    answer = index.query("m", [*tokens(0, 4), 9])
    assert answer.matches == ()
    (other,) = answer.not_credited
    assert (other.engine, other.trust) == ("a", one.status()["trust"]) != ("a", "exact")
    assert other.reason == "gap_kept" and answer.trust == other.trust


def test_who_is_taken_out_or_shut_down_is_in_no_answer():
    index = kvplane.Index()
    one, other = recorder("a"), recorder("b")
    for each in (one, other):
        index.add(each, "m")
        store(each, 0, 3)
    assert index.remove(one) and not index.remove(one)
    assert held(index, 0) == {("b", 0): 12}
    index.add(one, "m")
    assert held(index, 0) == {("a", 0): 12, ("b", 0): 12}
    other.shutdown()
    assert held(index, 0) == {("a", 0): 12}
    one.shutdown()
    with pytest.raises(ValueError, match="model"):
        held(index, 0)


def test_what_cannot_be_added():
    index, one = kvplane.Index(), recorder("a")
    index.add(one, "m")
    for refusing, again in [(index, one), (kvplane.Index(), one), (index, recorder("a"))]:
        with pytest.raises(kvplane.Error) as caught:
            refusing.add(again, "m")
        assert caught.value.code == "conflict"
    ended = recorder("b")
    ended.shutdown()
    with pytest.raises(kvplane.ClosedError):
        index.add(ended, "m")
    with pytest.raises(TypeError):
        index.add("b", "m")
    with pytest.raises(TypeError, match="model"):
        index.add(recorder("c"), 3)
    with pytest.raises(ValueError, match="credit"):
        kvplane.Index(credit=["much"])


def test_an_index_that_is_forgotten_lets_go_of_its_recorders():
    one = recorder("a")
    first = kvplane.Index()
    first.add(one, "m")
    del first
    second = kvplane.Index()
    second.add(one, "m")
    store(one, 0, 2)
    assert held(second, 0) == {("a", 0): 8}


def test_a_recorder_that_is_forgotten_leaves_also_if_a_snapshot_of_it_is_kept():
    index, one = kvplane.Index(), kvplane.Recorder("e", 0, 2)
    one.apply_stored(1, None, [1], [1, 1])
    index.add(one, "m")
    other = kvplane.Recorder("f", 0, 2)
    other.apply_stored(1, None, [1], [1, 1])
    index.add(other, "m")
    assert len(index.query("m", [1, 1, 1]).best) == 2
    taken = one.snapshot()
    del one
    gc.collect()
    assert [found.engine for found in index.query("m", [1, 1, 1], all=True).matches] == ["f"]
    assert len(taken) == 1 and "TreeDump" in taken.to_json()
