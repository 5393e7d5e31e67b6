"""kvplane in the place of inference-cache's sidecar: what its server is told, line by line."""

import signal
import time

import grpc
import pytest

from harness.inference_cache.index import CLEARED, EVICTED, fingerprints
from harness.inference_cache.truth import truth
from harness.plane import http, run
from harness.wait import eventually
from harness.wire import LAST_ARRAYS, NEWEST

WHOSE = ("t", "m", "r")
LIMIT = 4 << 20
LONG = list(range(128))


def stored(hashes, parent, tokens, version=NEWEST, **more):
    return version.stored(hashes, parent, tokens, 16, **more)


def held_as(tokens, adapter="", tier=1):
    """What a server should believe of a prompt whose whole blocks are held."""
    return {(adapter, hash): (16 * depth, tier) for depth, hash in enumerate(fingerprints(tokens), 1)}


def believes(server, expected, whose=WHOSE, deadline=15.0):
    """Waits until a server believes exactly this of a replica."""
    eventually(lambda: server.held(whose) == expected, lambda: (server.held(whose), expected), deadline)


def adds(heard):
    """Keys of a message that are said to be held."""
    return {(entry.adapter_id, entry.prefix_hash) for entry in heard.message.prefixes} if heard.kind == "report" else set()


@pytest.mark.parametrize("version", [LAST_ARRAYS, NEWEST], ids=str)
def test_what_is_told_and_how(engine, reporter, original_server, version):
    server, one = original_server(), engine(version)
    reporter(one, server.address)
    one.publish(stored([1, 2, 3], None, LONG[:48], version))
    one.publish(stored([4, 5], 3, LONG[48:80], version), stored([9], None, [7] * 16, version))
    believes(server, held_as(LONG[:80]) | held_as([7] * 16))
    one.publish(version.removed([5, 9]))
    believes(server, held_as(LONG[:64]))
    for heard in server.heard:
        message = heard.message
        assert (message.tenant_id, message.model_id, message.replica_id) == WHOSE
        assert 0 < heard.time_left <= 5.1, "every call has a deadline of its own"
        assert heard.size < LIMIT
        assert abs(message.timestamp_us / 1e6 - time.time()) < 60, "microseconds of the wall clock"
    for update in server.messages("report"):
        assert update.hash_scheme == "vllm"
        for entry in update.prefixes:
            assert len(entry.prefix_hash) == 8 and not entry.block_hashes
    evicted = [event for event in server.messages("event") if event.type == EVICTED]
    assert {event.prefix_hash for event in evicted} == {fingerprints(LONG)[4], fingerprints([7] * 16)[0]}


def test_the_published_vectors_as_an_engine_tells_them(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    one.publish(stored([1, 2], None, list(range(1, 33))), stored([3, 4, 5, 6], None, list(range(64))))
    wanted = [16863443419780771464, 12466389667045779788, 15310707395893867146, 13769157705258532664, 11879827756109914528, 3888788807566526800]
    tokens = [16, 32, 16, 32, 48, 64]
    believes(server, {("", number.to_bytes(8, "big")): (count, 1) for number, count in zip(wanted, tokens)})


def test_adapters_by_name(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    one.publish(stored([1], None, LONG[:16]), stored([2, 3], None, LONG[:32], lora_id=7, lora_name="sql"))
    believes(server, held_as(LONG[:16]) | held_as(LONG[:32], "sql"))
    one.publish(NEWEST.removed([3]))
    believes(server, held_as(LONG[:16]) | held_as(LONG[:16], "sql"))
    (event,) = [event for event in server.messages("event") if event.type == EVICTED]
    assert event.adapter_id == "sql"


def test_salted_and_multimodal_blocks_are_not_told(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    one.publish(
        stored([1, 2], None, LONG[:32], extra_keys=[["tenant-salt"], None]),
        stored([3], 2, LONG[32:48]),
        stored([4, 5], None, [5] * 32, extra_keys=[[("image", 0)], None]),
        stored([6], None, [6] * 16),
    )
    believes(server, held_as([6] * 16))


def test_adds_come_before_the_evictions_that_follow_them(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    for at in range(200):
        one.publish(stored([at], None, [at] * 16))
        if at % 3 == 0:
            one.publish(NEWEST.removed([at]))
        if at % 9 == 0:
            one.publish(stored([at], None, [at] * 16))
    expected = {}
    for at in range(200):
        if at % 3 or at % 9 == 0:
            expected |= held_as([at] * 16)
    believes(server, expected)
    told = set()
    for heard in server.heard:
        told |= adds(heard)
        if heard.kind == "event" and heard.message.type == EVICTED:
            assert (heard.message.adapter_id, heard.message.prefix_hash) in told, "an eviction of what was never told"


def test_a_clear_supersedes_what_was_waiting(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    one.publish(stored([1], None, [1] * 16))
    believes(server, held_as([1] * 16))
    server.stall()
    one.publish(stored([2], None, [2] * 16))
    one.publish(stored([3], None, [3] * 16), NEWEST.cleared(), stored([4], None, [4] * 16))
    eventually(lambda: adds(server.heard[-1]), "a call that is held")
    server.lift()
    believes(server, held_as([4] * 16))
    clear = max(at for at, heard in enumerate(server.heard) if heard.kind == "event" and heard.message.type == CLEARED)
    later = set().union(*(adds(heard) for heard in server.heard[clear:]))
    assert later == held_as([4] * 16).keys(), "what was gone by then is not told behind the clear"


def test_messages_stay_small(engine, reporter, original_server):
    server, one = original_server(), engine()
    tokens = [token for at in range(20_000) for token in [at] * 16]
    name = "an-adapter-with-a-long-name-" * 4
    for at in range(0, 20_000, 4_000):
        one.publish(stored(list(range(at, at + 4_000)), at - 1 if at else None, tokens[at * 16 : (at + 4_000) * 16], lora_id=1, lora_name=name))
    reporter(one, server.address)
    eventually(lambda: len(server.held(WHOSE)) == 20_000, lambda: len(server.held(WHOSE)), 30)
    assert max(tokens for tokens, _ in server.held(WHOSE).values()) == 320_000, "counted along the whole chain"
    assert max(heard.size for heard in server.heard) < LIMIT
    assert max(len(adds(heard)) for heard in server.heard) <= 4096


def test_a_server_that_returns_empty_is_told_everything(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address)
    one.publish(stored([1, 2], None, LONG[:32]))
    believes(server, held_as(LONG[:32]))
    server.restart()
    assert server.held(WHOSE) == {}
    # Nothing happens at the engine: it is the connection that says so.
    believes(server, held_as(LONG[:32]))


@pytest.mark.parametrize("health_service", [True, False], ids=["health", "no-health"])
def test_a_server_that_was_away(engine, reporter, original_server, health_service):
    server, one = original_server(health_service=health_service), engine()
    reporter(one, server.address)
    one.publish(stored([1, 2], None, LONG[:32]))
    believes(server, held_as(LONG[:32]))
    server.stop()
    one.publish(NEWEST.removed([2]), stored([3], None, [3] * 16))
    server.start()
    believes(server, held_as(LONG[:16]) | held_as([3] * 16))


@pytest.mark.parametrize("how", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, False], ids=str)
def test_what_was_refused_is_told_again(engine, reporter, original_server, how):
    server, one = original_server(), engine()
    # What a server does not want is told again with everything else; what it failed to take, at once.
    reporter(one, server.address, "--refresh", "1s" if how is False else "10m")
    one.publish(stored([1, 2], None, LONG[:32]))
    believes(server, held_as(LONG[:32]))
    before = len(server.heard)
    server.refuse(how)
    one.publish(NEWEST.removed([2]), stored([3], None, [3] * 16))
    eventually(lambda: len(server.heard) > before, "a call that is refused")
    server.refuse(None)
    believes(server, held_as(LONG[:16]) | held_as([3] * 16))


def test_a_stalled_server_holds_nobody_up(engine, reporter, original_server):
    server, one = original_server(), engine()
    told = reporter(one, server.address)
    one.publish(stored([1], None, [1] * 16))
    believes(server, held_as([1] * 16))
    server.stall()
    for at in range(2, 100):
        one.publish(stored([at], None, [at] * 16))
    server.lift()
    expected = {}
    for at in range(1, 100):
        expected |= held_as([at] * 16)
    believes(server, expected)
    server.stall()
    one.publish(stored([100], None, [100] * 16))
    began = time.monotonic()
    assert told.stop() == 0, told.log()
    assert time.monotonic() - began < 8, "shutdown waits for a server at most a few seconds"


def test_what_is_held_outlasts_the_servers_memory(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address, "--refresh", "1s")
    one.publish(*(stored([at], None, [at] * 16) for at in range(50)))
    expected = {}
    for at in range(50):
        expected |= held_as([at] * 16)
    believes(server, expected)
    for _ in range(2):
        server.forget()
        believes(server, expected)
    reports = [heard for heard in server.heard if adds(heard)]
    assert len(reports) > 5, "spread over time, not all at once"


def test_a_signal_drains_what_was_waiting(engine, reporter, original_server):
    server, one = original_server(), engine()
    # A window that does not end by itself within the test.
    told = reporter(one, server.address, window="60s")
    one.publish(stored([1, 2], None, LONG[:32]))
    pending = lambda: told.metric("kvplane_report_pending_adds")
    eventually(lambda: pending() == 2, pending)
    assert server.held(WHOSE) == {}
    assert told.stop(signal.SIGTERM) == 0, told.log()
    assert server.held(WHOSE) == held_as(LONG[:32])


def test_an_engine_with_a_second_tier(engine, reporter, original_server):
    server, one = original_server(), engine()
    reporter(one, server.address, "--ignore-block-removed")
    one.publish(stored([1, 2], None, LONG[:32]))
    believes(server, held_as(LONG[:32]))
    one.publish(NEWEST.removed([2]))
    believes(server, held_as(LONG[:16]) | {("", fingerprints(LONG)[1]): (32, 2)})


VLLM = """
vllm:kv_cache_usage_perc{model_name="m"} 0.5
vllm:prefix_cache_queries_total{model_name="m"} 1000
vllm:prefix_cache_hits_total{model_name="m"} 250
vllm:num_requests_running{model_name="m"} 24
vllm:num_requests_waiting{model_name="m"} 8
"""
SGLANG = """
sglang:token_usage{model_name="m"} 0.5
sglang:cache_hit_rate{model_name="m"} 0.25
sglang:num_running_reqs{model_name="m"} 24
sglang:num_queue_reqs{model_name="m"} 8
"""


@pytest.mark.parametrize(("scheme", "page"), [("vllm", VLLM), ("sglang", SGLANG)], ids=["vllm", "sglang"])
def test_statistics(engine, reporter, original_server, metrics, scheme, page):
    server, one = original_server(), engine()
    metrics.more = page
    reporter(
        one, server.address, "--hash-scheme", scheme, "--stats-interval", "100ms", "--engine-cache-size-bytes", "1000",
        "--max-concurrency-ceiling", "64", page=f"{metrics.url}/metrics",
    )
    stats = lambda: server.stats(WHOSE)
    eventually(lambda: stats() and stats().pressure == 0.5, stats)
    assert stats().cache_memory_bytes == 500
    if scheme == "vllm":
        metrics.more = page.replace(" 1000", " 1400").replace(" 250", " 550")
        eventually(lambda: stats().hit_rate == 0.75, stats)
        one.publish(stored([1], None, [1] * 16))
        believes(server, held_as([1] * 16))
        one.publish(NEWEST.cleared())
        believes(server, {})
        eventually(stats, "a clear took the statistics: they are told again")
    else:
        assert stats().hit_rate == 0.25


@pytest.mark.parametrize("names", ["1=a,1=b", "x=a", "1=", "=a"])
def test_flags_that_cannot_be(binary, names):
    known = ["--server", "127.0.0.1:1", "--replica-id", "r", "--model-id", "m", "--tenant-id", "t"]
    assert run(binary, "report", *known, "--lora-adapter-names", names).returncode == 2


def test_every_engine_of_a_plane(sim, plane, original_server, tmp_path):
    server, sims = original_server(), [sim("--blocks", 64), sim("--blocks", 64)]
    engines = "".join(
        f'[[engine]]\nid = "e{at}"\nkind = "vllm"\nmodel = "m"\nevents = "{one.events[0]}"\nreplay = "{one.replay[0]}"\n'
        for at, one in enumerate(sims)
    )
    config = tmp_path / "kvplane.toml"
    config.write_text(f'{engines}[[report]]\nserver = "http://{server.address}"\ntenant = "t"\nwindow = "50ms"\n')
    plane(args=["--config", config])
    for at, one in enumerate(sims):
        for prompt in range(10):
            one.complete([at * 100 + prompt] * 100, 20)
    for restarted in (False, True):
        if restarted:
            server.restart()
        for at, one in enumerate(sims):
            expected = truth(one)
            believed = lambda: {key: tokens for key, (tokens, _) in server.held(("t", "m", f"e{at}")).items()}
            eventually(lambda: believed() == expected, lambda: (believed(), expected))


def test_one_engine_under_two_names(sim, plane, original_server, tmp_path):
    server, engine = original_server(), sim("--blocks", 64)
    engine.complete(list(range(100)), 20)
    table = '[[report]]\nserver = "http://{}"\ntenant = "{}"\nwindow = "50ms"\n'
    config = tmp_path / "kvplane.toml"
    config.write_text(
        f'[[engine]]\nid = "e"\nkind = "vllm"\nmodel = "m"\nevents = "{engine.events[0]}"\nreplay = "{engine.replay[0]}"\n'
        + table.format(server.address, "one")
        + table.format(server.address, "two")
    )
    planes = plane(args=["--config", config])
    expected = truth(engine)
    for tenant in ("one", "two"):
        believed = lambda: {key: tokens for key, (tokens, _) in server.held((tenant, "m", "e")).items()}
        eventually(lambda: believed() == expected, lambda: (believed(), expected))
    # Prometheus refuses a page on which two series are one.
    page = http("GET", f"{planes.http}/metrics")[1]
    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if line and not line.startswith("#")]
    assert len(series) == len(set(series)), [name for name in series if series.count(name) > 1][:3]
    assert sum(name.startswith("kvplane_report_told_blocks_total") for name in series) == 2
