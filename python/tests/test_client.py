"""`Client`: the copy of a real plane's streams, and what is answered from it."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from harness.certificates import certificates
from harness.plane import Plane, Sim, clean_environment
from planes import MODEL, eventually, fleet, http, prompt

import kvplane


@pytest.fixture(scope="module")
def steady(binary):
    """A plane over two engines that hold something, for tests that break nothing."""
    with fleet(binary, 2) as one:
        for at, sim in enumerate(one.sims):
            sim.complete(prompt(1, 3 + at))
        one.sims[0].complete(prompt(2, 5))
        one.settle()
        yield one


@pytest.fixture
def own(binary):
    """A plane that the test may break."""
    with fleet(binary, 2) as one:
        one.settle()
        yield one


@pytest.fixture
def client(steady):
    with kvplane.Client(steady.address) as client:
        assert client.wait_ready(15)
        yield client


def same(client, plane, **question):
    """Waits until the client answers as the plane does, and gives the answer."""
    answers = []

    def equal():
        answers[:] = [client.query(MODEL, **question).as_dict(), plane.ask(**question)]
        return answers[0] == answers[1]

    eventually(equal, lambda: f"{answers}")
    return answers[0]


def caught_up(client, plane):
    """Waits until every copy is what the plane has, by its own word."""
    plane.settle()

    def look():
        ours = {(s["engine"], s["rank"]): (s["digest"], s["continuity"]) for s in client.streams()}
        told = plane.plane.get("/v1/status")[1]["engines"]
        theirs = {(e["id"], r["rank"]): (r["digest"], r["continuity"]) for e in told for r in e["ranks"]}
        return theirs and ours == theirs

    eventually(look, lambda: f"{client.streams()}\n{plane.plane.get('/v1/status')}")


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "details",
    [{}, {"lora_name": "a"}, {"cache_salt": "s"}, {"groups": True}, {"lora_id": 3}, {"lora_name": None}],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_answer_is_what_the_plane_answers(client, steady, seed, details):
    answer = same(client, steady, token_ids=prompt(seed, 6), all=True, **details)
    assert len(answer["matches"]) == 2 and answer["not_credited"] == []
    listed = same(client, steady, token_ids=prompt(seed, 6), limit=1, min_tokens=1, **details)
    assert len(listed["matches"]) == min(1, listed["counts"]["holders"]) and listed["counts"] == answer["counts"]


def test_an_answer_has_its_fields(client, steady):
    answer = client.query(MODEL, prompt(1, 6))
    best = answer.best[0]
    assert (best.engine, best.rank, best.blocks, best.tokens) == ("e1", 0, 4, 32)
    assert (best.trust, best.reason, best.block_size) == ("exact", None, 8)
    assert best.tiers == {"device": 32, "host": 32, "disk": 32, "remote": 32}
    assert best is answer.matches[0] and [found.engine for found in answer.matches] == ["e1", "e0"]
    assert (answer.trust, answer.not_credited) == ("exact", ())
    assert answer.counts == {
        "holders": 2, "best": 1, "empty": 0, "not_credited": 0, "not_credited_by_reason": {}, "shorter_than_block": 0,
    }
    assert "e1/0, 32 tokens" in repr(best) and "exact" in repr(answer)


def test_by_hashes_of_content_as_by_tokens(own):
    with kvplane.Client(own.address) as client:
        caught_up(client, own)
        changes = client.changes()
        loaded = 0
        while loaded < 2:
            loaded += next(changes).kind == "loaded"
        own.sims[0].complete(prompt(1, 3))
        batch = next(change for change in changes if change.kind == "batch" and change.events)
        hashes = [block["tokens_hash"] for event in batch.events for block in event["blocks"]]
        caught_up(client, own)
        by_hashes = same(client, own, block_hashes=hashes, block_size=8)
        assert by_hashes["best"] == [{"engine": "e0", "rank": 0}]
        assert by_hashes["matches"][0]["blocks"] == len(hashes) >= 3


@pytest.mark.parametrize(
    ("arguments", "details", "names"),
    [
        ((MODEL, [-1]), {}, "token_ids[0]"),
        ((MODEL, [2**32]), {}, "token_ids[0]"),
        ((MODEL, [1.5]), {}, "token_ids[0]"),
        ((MODEL, "text"), {}, "token_ids"),
        ((MODEL,), {}, "token_ids"),
        ((3, [1]), {}, "model"),
        (("nobody", [1]), {}, "model"),
        ((MODEL, [1]), {"lora_name": 3}, "lora_name"),
        ((MODEL, [1]), {"block_size": 8}, "block_size"),
        ((MODEL, [1]), {"chained": 3}, "chained"),
        ((MODEL, [1]), {"multimodal": [("a", 0)]}, "multimodal[0]"),
        ((MODEL, [1]), {"multimodal": [("a", 0, 9)]}, "multimodal"),
        ((MODEL,), {"block_hashes": [b"x" * 16], "block_size": 8}, "block_hashes[0]"),
        ((MODEL, [1]), {"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_named(client, arguments, details, names):
    with pytest.raises((ValueError, TypeError)) as caught:
        client.query(*arguments, **details)
    assert isinstance(caught.value, kvplane.Error)
    assert (caught.value.argument, caught.value.code) == (names, "invalid_argument")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)
keywords = st.dictionaries(
    st.sampled_from(["lora_name", "lora_id", "cache_salt", "extra_keys", "multimodal", "block_hashes", "chained", "block_size", "groups"]),
    anything,
    max_size=4,
)


@settings(max_examples=300)
@given(model=anything | st.just(MODEL), tokens=anything | st.lists(st.integers(0, 2**32 - 1), max_size=20), details=keywords)
def test_whatever_is_asked_no_panic_comes_through(steady_client, model, tokens, details):
    try:
        answer = steady_client.query(model, tokens, **details)
    except kvplane.Error as error:
        assert error.code == "invalid_argument", error
    else:
        assert answer.trust in ("exact", "lower", "unverified", "unsound")


@pytest.fixture(scope="module")
def steady_client(steady):
    with kvplane.Client(steady.address) as client:
        assert client.wait_ready(15)
        yield client


@settings(max_examples=50)
@given(arguments=st.fixed_dictionaries({}, optional={"engine": anything, "credit": anything, "down_after": anything}), address=anything)
def test_whatever_a_client_is_made_with_no_panic_comes_through(arguments, address):
    try:
        kvplane.Client(address, **arguments).close()
    except (kvplane.Error, TypeError) as error:
        assert not isinstance(error, kvplane.InternalError), error


# --- what goes wrong around it ---------------------------------------------------------------------------------------


def test_an_engine_that_restarts_is_followed_into_its_next_life(own):
    with kvplane.Client(own.address) as client:
        own.sims[0].complete(prompt(1, 4))
        caught_up(client, own)
        before = same(client, own, token_ids=prompt(1, 4))["matches"][0]
        own.sims[0].fault(restart={"first_sequence": 0, "same_content": False})
        own.sims[0].complete(prompt(2, 3))
        caught_up(client, own)
        after = same(client, own, token_ids=prompt(2, 3))["matches"][0]
        assert (before["engine"], after["engine"]) == ("e0", "e0")
        assert after["epoch"] > before["epoch"]
        assert same(client, own, token_ids=prompt(1, 4))["best"] == []


def test_nothing_is_credited_while_the_plane_is_away_and_everything_after(own):
    with kvplane.Client(own.address) as client:
        own.sims[1].complete(prompt(1, 4))
        caught_up(client, own)
        assert client.query(MODEL, prompt(1, 4)).best
        own.stop_plane()
        eventually(lambda: not client.status()["connected"], "disconnected")
        answer = client.query(MODEL, prompt(1, 4))
        assert answer.matches == () == answer.best
        assert {found.continuity for found in answer.not_credited} <= {"recovering", "down"}
        assert {found.reason for found in answer.not_credited} <= {"recovering", "down"}
        assert client.status()["trouble"] == "unreached"
        own.sims[1].complete(prompt(2, 4))
        own.start_plane()
        caught_up(client, own)
        for seed in (1, 2):
            assert same(client, own, token_ids=prompt(seed, 4))["best"] == [{"engine": "e1", "rank": 0}]
        assert client.status()["connects"] == 2


def test_a_gap_is_answered_as_the_plane_answers_it(own):
    with kvplane.Client(own.address) as client:
        own.sims[0].complete(prompt(1, 4))
        caught_up(client, own)
        # A number is used up without a batch: the engine cannot tell it again.
        own.sims[0].fault(lose=1)
        own.sims[0].complete(prompt(2, 4))
        own.sims[0].complete(prompt(3, 4))
        caught_up(client, own)
        for seed in (1, 2, 3):
            same(client, own, token_ids=prompt(seed, 4))


def test_a_plane_that_is_not_there_yet(own, caplog):
    own.stop_plane()
    with caplog.at_level(logging.INFO, logger="kvplane"), kvplane.Client(own.address) as client:
        with pytest.raises(kvplane.Error) as caught:
            client.query(MODEL, prompt(1, 2))
        assert caught.value.code == "unavailable"
        assert not client.wait_ready(0.05)
        assert client.streams() == []
        eventually(lambda: "is not followed: unreached" in caplog.text, lambda: caplog.text)
        own.start_plane()
        assert client.wait_ready(15)
        eventually(lambda: "following the plane at" in caplog.text, lambda: caplog.text)


def test_a_plane_that_wants_a_token_over_tls(binary, tmp_path):
    certificates(tmp_path)
    sim = Sim(binary, "--blocks", 400, "--block-size", 8)
    config = tmp_path / "kvplane.toml"
    config.write_text(f"""
        [listen]
        tls = {{ cert = "{tmp_path}/cert.pem", key = "{tmp_path}/key.pem" }}
        [[auth.token]]
        name = "gateway"
        role = "read"
        env = "TEST_READ_TOKEN"
        [[engine]]
        id = "e0"
        kind = "vllm"
        model = "{MODEL}"
        events = "{sim.events[0]}"
        replay = "{sim.replay[0]}"
    """)
    plane = Plane(binary, "--config", config, env=clean_environment(TEST_READ_TOKEN="gateways-secret-1"))
    try:
        address, ca = f"https://{plane.grpc}", tmp_path / "ca.pem"
        for wrong in (None, "nobodys"):
            with kvplane.Client(address, token=wrong, ca=ca) as client:
                eventually(lambda: client.status()["trouble"] == "refused", client.status)
                assert client.streams() == [] and not client.wait_ready(0)
        with kvplane.Client(address, token="gateways-secret-1", ca=ca.read_bytes()) as client:
            assert client.wait_ready(15)
            sim.complete(prompt(1, 3))
            eventually(lambda: client.query(MODEL, prompt(1, 3)).best, "held")
            assert "secret" not in repr(client) + repr(client.status())
        with kvplane.Client(address, token="gateways-secret-1") as client:
            eventually(lambda: client.status()["trouble"] == "unreached", client.status)
    finally:
        plane.close()
        sim.close()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"token": "two words"}, "token"),
        ({"token": 3}, "token"),
        ({"ca": b"x"}, "ca"),
        ({"ca": b"", "address": "https://127.0.0.1:1"}, "ca"),
        ({"ca": b"no certificate in it", "address": "https://127.0.0.1:1"}, "ca"),
        ({"address": "ftp://h:1"}, "address"),
        ({"credit": ["much"]}, "credit[0]"),
        ({"down_after": -1.0}, "down_after"),
    ],
)
def test_what_a_client_cannot_be_made_with_is_named(arguments, names):
    with pytest.raises((ValueError, TypeError)) as caught:
        kvplane.Client(**{"address": "127.0.0.1:1", **arguments})
    assert caught.value.argument == names


# --- changes ---------------------------------------------------------------------------------------------------------


def test_batches_tell_everything_that_happens_to_a_stream(own):
    """Whoever applies them from an empty beginning holds what the engine holds. What is loaded is not told block by block."""
    with kvplane.Client(own.address) as client:
        held, heard, loaded = {}, [], threading.Event()

        @client.on_change
        def apply(change):
            heard.append(change.kind)
            if change.kind in ("loaded", "reset"):
                held.pop(change.engine, None)
            for event in change.events:
                mine = held.setdefault(change.engine, {})
                if event["type"] in ("cleared", "dropped"):
                    mine.clear()
                for block in event.get("blocks", []):
                    mine[block["block_hash"]] = block["copies"]
            if heard.count("loaded") >= 2:
                loaded.set()

        caught_up(client, own)
        assert loaded.wait(15)
        for seed in range(30):
            own.sims[seed % 2].complete(prompt(seed, 6))
        caught_up(client, own)

        def equal():
            ours = [{h: n for h, n in held.get(f"e{at}", {}).items() if n} for at in range(2)]
            return ours == [sim.state()[0] for sim in own.sims]

        eventually(equal, lambda: f"{heard}")
        assert "batch" in heard


def test_a_callback_that_fails_is_reported_and_the_next_is_called(own, caplog):
    with kvplane.Client(own.address) as client:
        told = threading.Event()

        @client.on_change
        def fails(change):
            raise RuntimeError("of the callback")

        client.on_change(lambda change: told.set())
        assert client.wait_ready(15)
        own.sims[0].complete(prompt(1, 2))
        assert told.wait(15)
        eventually(lambda: "RuntimeError: of the callback" in caplog.text, lambda: caplog.text)
        assert client.status()["callback_errors"] >= 1
        assert len(client.streams()) == 2, "and the client goes on"
        with pytest.raises(TypeError, match="callback"):
            client.on_change(3)


@pytest.mark.parametrize("fault", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_callback_that_would_end_everything_ends_nothing(steady, caplog, fault):
    with kvplane.Client(steady.address) as client:
        @client.on_change
        def fails(change):
            raise fault("of the callback")

        # Connected, and two streams.
        eventually(lambda: client.status()["callback_errors"] >= 3, client.status)
    assert f"{fault.__name__}: of the callback" in caplog.text


def test_every_callback_begins_with_where_everything_stands(client):
    for _ in range(2):
        told, all_there = [], threading.Event()

        @client.on_change
        def listen(change, told=told, all_there=all_there):
            told.append((change.kind, change.engine))
            if len(told) == 3:
                all_there.set()

        assert all_there.wait(15), told
        assert sorted(told[:3], key=str) == [("connected", None), ("loaded", "e0"), ("loaded", "e1")]


def test_whoever_hears_that_the_plane_is_away_gets_no_credit(own):
    with kvplane.Client(own.address) as client:
        own.sims[1].complete(prompt(1, 4))
        caught_up(client, own)
        answers, heard = [], threading.Event()

        @client.on_change
        def ask(change):
            if change.kind == "disconnected":
                answers.append(client.query(MODEL, prompt(1, 4)).matches)
                heard.set()

        own.stop_plane()
        assert heard.wait(15)
        assert answers[0] == ()


def test_a_callback_that_does_not_return_is_left_behind(steady, caplog, monkeypatch):
    monkeypatch.setattr("kvplane.client._CALLBACKS_WITHIN", 0.05)
    called, release = threading.Event(), threading.Event()
    client = kvplane.Client(steady.address)

    @client.on_change
    def stays(change):
        called.set()
        release.wait()

    assert called.wait(15)
    client.close()
    assert "a callback has not returned 0.05 s after the client was closed" in caplog.text
    release.set()
    for thread in client._threads:
        thread.join(15)
        assert not thread.is_alive()


def test_the_plane_s_engines_come_and_go(own):
    with kvplane.Client(own.address) as client:
        gone = threading.Event()
        client.on_change(lambda change: gone.set() if (change.kind, change.engine) == ("gone", "e1") else None)
        assert client.wait_ready(15)
        status, body = http("DELETE", f"{own.plane.http}/v1/engines/e1")
        assert status in (200, 204), body
        assert gone.wait(15)
        assert [stream["engine"] for stream in client.streams()] == ["e0"]


# --- threads, ends, forks --------------------------------------------------------------------------------------------


def test_any_thread_may_ask(client, steady):
    def query():
        answer = client.query(MODEL, prompt(1, 6)).as_dict()
        # How old the proof of an engine is grows from question to question.
        ages = [found.pop("age_ms") for found in answer["matches"]]
        assert all(0 <= age <= 2_000 for age in ages), ages
        return answer

    expected = query()
    wrong = []

    def ask():
        for _ in range(300):
            answer = query()
            if answer != expected:
                wrong.append(answer)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_closing_while_others_call(steady):
    client = kvplane.Client(steady.address)
    assert client.wait_ready(15)
    begun, unexpected = threading.Barrier(7), []

    def call(what):
        begun.wait()
        try:
            while True:
                what()
        except kvplane.ClosedError:
            pass
        except Exception as error:
            unexpected.append(error)

    def follow():
        for _ in client.changes():
            pass

    calls = [lambda: client.query(MODEL, prompt(1, 6)), client.streams, client.status, follow, lambda: client.wait_ready(0), follow]
    threads = [threading.Thread(target=call, args=(what,)) for what in calls]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(15)
        assert not thread.is_alive()
    assert unexpected == []
    assert client.closed
    client.close()
    for late in (client.status, client.streams, client.changes, lambda: client.on_change(print)):
        with pytest.raises(kvplane.ClosedError):
            late()


def test_one_that_is_forgotten_ends(steady):
    client = kvplane.Client(steady.address)
    client.on_change(lambda change: None)
    threads = client._threads
    del client
    gc.collect()
    for thread in threads:
        thread.join(15)
        assert not thread.is_alive()


@pytest.mark.parametrize("leave", ["", "client.on_change(lambda change: None)", "changes = client.changes(); next(changes)"])
def test_the_interpreter_ends_with_an_open_client(steady, leave):
    script = f"""
import kvplane
client = kvplane.Client({steady.address!r})
assert client.wait_ready(15)
{leave}
print("done", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_is_told_that_it_has_no_client(steady):
    script = f"""
import os, sys, kvplane
client = kvplane.Client({steady.address!r})
assert client.wait_ready(15)
child = os.fork()
if child == 0:
    try:
        client.query("m", [1])
    except kvplane.ClosedError:
        with kvplane.Client({steady.address!r}) as own:
            assert own.wait_ready(15) and own.query("m", [1]).trust == "exact"
        assert client.closed
        client.close()
        sys.exit(7)
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert client.query("m", [1]).trust == "exact"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# --- asyncio ---------------------------------------------------------------------------------------------------------


def test_the_same_within_asyncio(own):
    async def main():
        async with kvplane.AsyncClient(own.address) as client:
            assert await client.wait_ready(15)
            kinds = []

            async def listen():
                async for change in client.changes():
                    kinds.append(change.kind)
                    if change.kind == "batch":
                        return change

            listening = asyncio.create_task(listen())
            while kinds.count("loaded") < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own.sims[0].complete, prompt(1, 4))
            change = await asyncio.wait_for(listening, 15)
            assert (change.engine, change.rank) == ("e0", 0)
            answer = await client.query(MODEL, prompt(1, 4))
            assert [found.engine for found in answer.best] == ["e0"]
            assert client.status()["ready"] and len(client.streams()) == 2
        assert client.closed
        with pytest.raises(kvplane.ClosedError):
            await client.query(MODEL, [1])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_callbacks_within_asyncio(own, caplog):
    async def main():
        loop = asyncio.get_running_loop()
        async with kvplane.AsyncClient(own.address) as client:
            plain, awaited, batch = [], [], asyncio.Event()

            @client.on_change
            def listen(change):
                assert asyncio.get_running_loop() is loop
                plain.append(change.kind)

            @client.on_change
            async def listen_and_wait(change):
                await asyncio.sleep(0)
                awaited.append(change.kind)
                if change.kind == "batch":
                    batch.set()

            @client.on_change
            async def fails(change):
                raise RuntimeError("of the callback")

            with pytest.raises(TypeError, match="callback"):
                client.on_change(3)
            while awaited.count("loaded") < 2 or plain.count("loaded") < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own.sims[0].complete, prompt(1, 4))
            await batch.wait()
        assert not client._tasks
        assert client._client._callback_errors >= 3

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "RuntimeError: of the callback" in caplog.text


def test_an_asynchronous_callback_that_does_not_return_is_left_behind(own, caplog, monkeypatch):
    monkeypatch.setattr("kvplane.client._CALLBACKS_WITHIN", 0.05)

    async def main():
        called = asyncio.Event()
        client = kvplane.AsyncClient(own.address)

        @client.on_change
        async def stays(change):
            called.set()
            await asyncio.Event().wait()

        await called.wait()
        await client.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "a callback has not returned" in caplog.text


def test_listening_can_be_given_up_and_ends_with_the_client(own):
    async def main():
        client = kvplane.AsyncClient(own.address)
        assert await client.wait_ready(15)

        async def listen():
            async for _ in client.changes():
                pass

        given_up, ended = asyncio.create_task(listen()), asyncio.create_task(listen())
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await client.close()
        await asyncio.wait_for(ended, 15)
        assert not await asyncio.wait_for(nobody(), 15)

    async def nobody():
        async with kvplane.AsyncClient("127.0.0.1:1") as client:
            return await client.wait_ready(0.05)

    asyncio.run(main())
