"""kvplane in the place of inference-cache's server: its sidecars and gateways need not notice, line by line."""

import json

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.inference_cache.client import Client, matched, now_us
from harness.inference_cache.index import RESERVED, fingerprints
from harness.inference_cache.truth import load, truth
from harness.plane import http, run
from harness.wait import eventually
from harness.wire import LAST_ARRAYS, NEWEST

LONG = list(range(128))
OTHER = list(range(1000, 1128))
SERVICE = "inferencecache.v1alpha1.InferenceCache"


@pytest.fixture
def served(plane):
    """A plane without engines: a server for others' reports."""
    return plane()


@pytest.fixture
def client(pb, served):
    made = Client(pb, served.grpc)
    yield made
    made.close()


# --- what sidecars tell -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [LAST_ARRAYS, NEWEST], ids=str)
def test_the_original_sidecar_unchanged(pb, engine, served, client, original_subscriber, version):
    one = engine(version, synchronised=True)
    told = original_subscriber(one.events, served.grpc, replica="r", model="m", tenant="t", window=0.02, adapters={1: "sql"})
    eventually(one.has_subscriber, "a subscription")
    one.publish(version.stored([1, 2, 3, 4], None, LONG[:64], 16))
    one.publish(version.stored([5, 6], 4, LONG[64:96], 16), version.stored([7, 8, 9, 10], None, LONG[:64], 16, lora_id=1))
    eventually(lambda: matched(client.chain(LONG)) == [("r", 96)], lambda: client.chain(LONG))
    eventually(lambda: matched(client.chain(LONG, adapter_id="sql")) == [("r", 64)], lambda: client.chain(LONG, adapter_id="sql"))
    one.publish(version.removed([6]))
    eventually(lambda: matched(client.chain(LONG)) == [("r", 80)], lambda: client.chain(LONG))
    assert told.tell_stats(hit_rate=0.5, pressure=0.25)
    (stats,) = client.state().replicas
    assert (stats.replica_id, stats.hit_rate, stats.pressure) == ("r", 0.5, 0.25)
    one.publish(version.cleared())
    eventually(lambda: client.state().summary.total_prefixes == 0, client.state)
    assert not client.state().replicas, "a clear takes the statistics too"
    assert (told.lost, told.malformed) == (0, 0)


def test_many_short_streams_each_applied_before_it_is_acknowledged(client):
    for at in range(100):
        prompt = [at] * 64
        client.holds(f"r{at % 7}", prompt)
        client.holds("elsewhere", OTHER)
        assert matched(client.chain(prompt)) == [(f"r{at % 7}", 64)]


def test_each_message_of_a_stream_counts_when_it_comes(pb, client):
    def updates():
        yield client.update("a", {"prefix_hash": b"12345678", "token_count": 64})
        eventually(lambda: matched(client.exact(b"12345678")) == [("a", 64)], "the first, before the last was sent")
        yield client.update("b", {"prefix_hash": b"87654321", "token_count": 64})

    assert client.stub.ReportCacheState(updates(), timeout=15).accepted
    assert matched(client.exact(b"87654321")) == [("b", 64)]


def test_updates_add_and_absence_removes_nothing(client):
    client.holds("a", LONG)
    client.holds("a", OTHER)
    assert matched(client.chain(LONG)) == matched(client.chain(OTHER)) == [("a", 128)]


def test_chains_are_entries_with_counts_that_add_up(client):
    hashes = fingerprints(LONG)
    entry = {"block_hashes": hashes, "block_token_counts": [16] * 8, "prefix_hash": b"whole", "token_count": 100}
    assert client.report(client.update("a", entry))
    assert matched(client.chain(LONG)) == [("a", 128)]
    assert matched(client.exact(hashes[4])) == [("a", 80)]
    assert matched(client.exact(b"whole")) == [("a", 100)]


def test_unequal_arrays_are_dropped_and_their_neighbours_kept(client):
    bad = {"block_hashes": fingerprints(LONG), "block_token_counts": [16], "prefix_hash": b"12345678", "token_count": 64}
    only_counts = {"block_token_counts": [16], "prefix_hash": b"23456789", "token_count": 64}
    good = {"prefix_hash": b"87654321", "token_count": 64}
    assert client.report(client.update("a", bad, only_counts, good))
    assert client.state().summary.total_prefixes == 1
    assert matched(client.exact(b"87654321")) == [("a", 64)]


def test_the_last_tier_counts(client):
    tier = lambda: client.chain(LONG).replica_scores[0].tier
    client.holds("a", LONG)
    assert tier() == 1, "none named is the device"
    client.holds("a", LONG, 1, tier=2)
    assert tier() == 2, "the coldest of the run"
    client.holds("a", LONG, 1, tier=1)
    assert tier() == 1
    client.holds("a", LONG, 1, tier=7)
    assert tier() == 7, "unknown tiers stay as cold as they say"


def test_adapters_of_an_entry_and_of_an_update(client):
    own = {"prefix_hash": b"12345678", "token_count": 64, "adapter_id": "sql"}
    updates = {"prefix_hash": b"87654321", "token_count": 64}
    assert client.report(client.update("a", own, updates, adapter_id="chat"))
    assert matched(client.exact(b"12345678", adapter_id="sql")) == [("a", 64)]
    assert matched(client.exact(b"87654321", adapter_id="chat")) == [("a", 64)]
    assert client.exact(b"12345678", adapter_id="sql").adapter_id == "sql"
    assert matched(client.exact(b"12345678")) == "AFFINITY_HINT"


def test_no_timestamp_is_now(client):
    client.holds("a", LONG)
    assert client.chain(LONG).replica_scores[0].estimated_cache_hit_prob > 0.99
    client.holds("a", LONG, timestamp_us=now_us() - 900_000_000)
    assert client.chain(LONG).replica_scores[0].estimated_cache_hit_prob == pytest.approx(0.5, abs=0.05)


def test_statistics_without_a_scheme_and_prefixes_without_one(pb, client):
    client.holds("b", OTHER)
    update = client.update("a", {"prefix_hash": b"12345678", "token_count": 64}, scheme="")
    update.stats.CopyFrom(pb.ReplicaStats(cache_memory_bytes=7, hit_rate=float("nan"), pressure=float("inf"), client_version="x"))
    assert client.report(update)
    assert client.state().summary.total_prefixes == 8
    (stats,) = client.state().replicas
    assert (stats.replica_id, stats.cache_memory_bytes, stats.hit_rate, stats.pressure) == ("a", 7, 0.0, 0.0)


def test_an_eviction_counts_in_every_scheme_and_clears_take_statistics(pb, client):
    for scheme in ("vllm", "sglang"):
        client.holds("a", LONG, scheme=scheme)
        client.holds("b", OTHER, scheme=scheme)
    assert client.event("PREFIX_EVICTED", "a", prefix_hash=fingerprints(LONG)[7])
    for scheme in ("vllm", "sglang"):
        assert matched(client.chain(LONG, scheme=scheme)) == [("a", 112)]
    client.report(client.update("a", stats=pb.ReplicaStats(hit_rate=0.5)))
    assert len(client.state().replicas) == 1
    assert client.event("ALL_CLEARED", "a")
    assert not client.state().replicas
    assert matched(client.chain(LONG)) == "AFFINITY_HINT"
    assert matched(client.chain(OTHER)) == [("b", 128)]


def test_an_eviction_of_an_adapter_leaves_the_others(client):
    for adapter in ("", "sql", "chat"):
        client.holds("a", LONG, 4, adapter=adapter)
    last = fingerprints(LONG)[3]
    assert client.event("PREFIX_EVICTED", "a", prefix_hash=last, adapter_id="sql")
    held = lambda adapter: matched(client.exact(last, adapter_id=adapter)) == [("a", 64)]
    assert [held("sql"), held("chat"), held("")] == [False, True, True]
    assert client.event("PREFIX_EVICTED", "a", prefix_hash=last)
    assert [held("chat"), held("")] == [False, False], "no adapter is every adapter"


@pytest.mark.parametrize("type", ["PREFIX_ADDED", "TYPE_UNSPECIFIED", "REPLICA_UPDATED"])
def test_events_that_change_no_prefix(pb, client, type):
    client.holds("a", LONG)
    names = pb.CacheEvent.Type.keys()
    type = type if type in names else names[0]
    assert client.event(type, "a", prefix_hash=b"12345678")
    assert client.state().summary.total_prefixes == 8
    assert matched(client.exact(b"12345678")) == "AFFINITY_HINT"


def test_an_event_of_a_type_that_does_not_exist_is_acknowledged(pb, client):
    assert client.stub.PublishEvent(pb.CacheEvent(type=99, replica_id="a", **client.names), timeout=5).accepted


def test_the_probes_tenant_leaves_no_trace(pb, served, client):
    client.holds("a", LONG, tenant_id=RESERVED)
    client.report(client.update("a", stats=pb.ReplicaStats(hit_rate=0.5), tenant_id=RESERVED))
    assert client.event("ALL_CLEARED", "a", tenant_id=RESERVED)
    assert matched(client.chain(LONG, tenant_id=RESERVED)) == "NO_HINT"
    assert client.state(tenant_id=RESERVED).summary.total_prefixes == 0
    assert RESERVED not in json.dumps(served.get("/snapshot")[1])


def test_fields_of_a_later_version_are_tolerated(pb, served, client):
    # Field 99, a string, behind what is known.
    later = b"\x9a\x06\x05later"
    update = client.update("a", {"prefix_hash": b"12345678", "token_count": 64}).SerializeToString() + later
    call = client.channel.stream_unary(f"/{SERVICE}/ReportCacheState", response_deserializer=pb.Ack.FromString)
    assert call(iter([update]), timeout=5).accepted
    assert matched(client.exact(b"12345678")) == [("a", 64)]


def test_tenants_do_not_see_each_other(client):
    client.holds("a", LONG, tenant_id="red")
    client.holds("b", LONG, tenant_id="blue")
    assert matched(client.chain(LONG, tenant_id="red")) == [("a", 128)]
    assert matched(client.chain(LONG, tenant_id="blue")) == [("b", 128)]
    client.event("ALL_CLEARED", "a", tenant_id="blue")
    assert matched(client.chain(LONG, tenant_id="red")) == [("a", 128)]
    assert matched(client.chain(LONG, tenant_id="green")) == "UNKNOWN_TENANT"


# --- what gateways and controllers ask ------------------------------------------------------------------------------


def test_the_rest_of_the_port(served):
    with grpc.insecure_channel(served.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
        reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        assert SERVICE.encode() in next(reflect(iter([b"\x3a\x00"]), timeout=5))


def test_what_is_not_answered_says_so(pb, client):
    stub = client.stub
    for call in (
        lambda: stub.LookupPDRoute(pb.LookupPDRouteRequest(), timeout=5),
        lambda: list(stub.StreamMetrics(pb.StreamMetricsRequest(), timeout=5)),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert error.value.details()


def test_a_prompt_as_text_is_refused_by_name_and_fails_nobody(pb, client):
    client.holds("a", LONG)
    question = pb.LookupRouteRequest(hash_scheme="vllm", prompt_text="a prompt", **client.names)
    answer, call = client.stub.LookupRoute.with_call(question, timeout=5)
    assert answer.reason_code == "NO_HINT" and not answer.replica_scores
    told = [*call.initial_metadata(), *call.trailing_metadata()]
    assert any("prompt_text" in str(value) for _, value in told), told


def test_changes_as_they_happen(pb, client):
    types = [pb.CacheEvent.PREFIX_ADDED, pb.CacheEvent.PREFIX_EVICTED, pb.CacheEvent.ALL_CLEARED]
    stream = client.stub.StreamCacheEvents(pb.StreamEventsRequest(types=types, **client.names), timeout=15)
    heard = iter(stream)
    stream.initial_metadata()  # from here on somebody listens
    client.holds("other", LONG, tenant_id="another")
    client.holds("a", LONG, 2)
    added = [next(heard) for _ in range(2)]
    assert {(event.type, event.replica_id, event.prefix_hash) for event in added} == {
        (pb.CacheEvent.PREFIX_ADDED, "a", hash) for hash in fingerprints(LONG)[:2]
    }
    client.event("PREFIX_EVICTED", "a", prefix_hash=fingerprints(LONG)[1])
    evicted = next(heard)
    assert (evicted.type, evicted.prefix_hash) == (pb.CacheEvent.PREFIX_EVICTED, fingerprints(LONG)[1])
    client.event("ALL_CLEARED", "a")
    assert next(heard).type == pb.CacheEvent.ALL_CLEARED
    stream.cancel()


def test_the_controllers_pages(pb, served, client):
    client.holds("a", LONG)
    client.report(client.update("a", stats=pb.ReplicaStats(hit_rate=0.5, cache_memory_bytes=9)))
    status, snapshot = served.get("/snapshot")
    assert status == 200
    (replica,) = snapshot["replicas"]
    assert (replica["replicaId"], replica["tenant"], replica["prefixCount"], replica["cacheMemoryBytes"]) == ("a", "t", 8, 9)
    assert replica["hitRate"] == pytest.approx(0.5) and replica["statsReported"]
    for key in ("pressure", "lastUpdate", "lastEventAt", "t2HitTokens", "t2QueryTokens"):
        assert key in replica
    (tenant,) = snapshot["tenants"]
    assert (tenant["tenantId"], tenant["indexEntries"], tenant["memoryUsed"]) == ("t", 8, 0)
    assert snapshot["totalPrefixes"] == 8 and "hotPrefixes" in snapshot

    policy = {"namespace": "t", "evictionTTL": 60_000_000_000, "strategy": {"requireChain": True}}
    assert http("POST", f"{served.http}/policy", {"version": 7, "policies": [policy], "tenants": []})[0] == 204
    assert matched(client.exact(fingerprints(LONG)[7])) == "POLICY_REQUIRES_CHAIN"
    assert http("PUT", f"{served.http}/policy", {"version": 7, "policies": [], "tenants": []})[0] == 204
    assert matched(client.exact(fingerprints(LONG)[7])) == [("a", 128)], "a policy replaces the one before"
    for bad in ({"version": 2}, {"version": 8}, {"version": 7, "unheard": 1}, {"version": 7, "policies": [{"namespace": "t", "x": 1}]}):
        assert http("POST", f"{served.http}/policy", bad)[0] == 400, bad

    probe = {"backend": "b", "model": "m", "hashScheme": "vllm", "backendType": "vllm"}
    status, answer = http("POST", f"{served.http}/probe", probe)
    assert status == 200
    assert (answer["backend"], answer["ingest"], answer["routing"], answer["errors"]) == ("b", "ok", "ok", [])
    assert served.get("/snapshot")[1]["totalPrefixes"] == 8, "a probe leaves nothing behind"


def test_alerts_over_the_originals_metrics(served, client):
    client.holds("a", LONG)
    client.chain(LONG)
    client.chain(LONG, tenant_id="u")
    page = served.get("/metrics")[1]
    value = lambda name, **labels: sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.split("{")[0].split(" ")[0] == name and all(f'{key}="{text}"' in line for key, text in labels.items())
    )
    assert value("inferencecache_server_up") == 1
    assert value("inferencecache_server_grpc_tls_enabled") == 0
    assert value("inferencecache_index_entries", model="m") == 8
    calls = "inferencecache_lookup_route_calls_total"
    assert value(calls, model="m", reason_code="PREFIX_MATCH", hint_used="true") == 1
    assert value(calls, model="m", reason_code="UNKNOWN_TENANT", hint_used="false") == 1
    assert value("inferencecache_lookup_route_latency_seconds_count", model="m") == 2
    assert value("inferencecache_lookup_route_latency_seconds_bucket", model="m", le="+Inf") == 2
    assert 'le="0.0001"' in page and 'le="0.1"' in page
    # An alert on a rate needs the series to be there before anything happened.
    for name in ("tenant_evictions_total", "index_evictions_total", "snapshot_auth_total", "policy_auth_total", "probe_auth_total"):
        assert f"# TYPE inferencecache_{name}" in page or f"# TYPE inferencecache_{name.removesuffix('_total')} " in page, name


def test_floods_are_refused(pb, client):
    entries = [{"prefix_hash": at.to_bytes(32, "big"), "token_count": 16} for at in range(120_000)]
    update = client.update("a", *entries)
    assert update.ByteSize() > 4 << 20
    with pytest.raises(grpc.RpcError) as error:
        client.report(update)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.state().summary.total_prefixes == 0


# --- engines that kvplane hears itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [{"restart": {"first_sequence": 0, "same_content": False}}, {"restart": {"first_sequence": 60, "same_content": True}}, {"drop": 3}],
    ids=["restarted", "overtaken", "lost"],
)
def test_heard_engines_answer_what_they_hold(pb, sim, plane, fault):
    one = sim("--blocks", 64)
    p = plane(one, args=["--set", "hints.minimum_matched_tokens=0"], model="m")
    told = Client(pb, p.grpc, tenant_id="default")
    ever = {}

    def equal():
        held = truth(one)
        ever.update(held)
        answers = {key: matched(told.exact(key[1], tokens, adapter_id=key[0])) for key, tokens in ever.items()}
        return all((answers[key] == [("e0", tokens)]) == (key in held) for key, tokens in ever.items())

    load(one, 12, 1_000)
    eventually(equal, "lookups that say what the engine holds")
    one.fault(**fault)
    load(one, 6, 2_000)
    eventually(equal, "lookups that say what the engine holds")
    told.close()


def test_heard_engines_and_reported_replicas_side_by_side(pb, sim, plane):
    one = sim()
    p = plane(one, model="m", tenant="t")
    told = Client(pb, p.grpc)
    one.complete(LONG, 1)
    p.wait_at(one.state()[1] - 1)
    assert matched(told.chain(LONG)) == [("e0", 128)], "the first caller waits until the engine is known"
    told.holds("r", LONG, 4)
    told.holds("elsewhere", OTHER)
    assert matched(told.chain(LONG)) == [("e0", 128), ("r", 64)]
    assert told.chain(LONG).replica_scores[0].estimated_cache_hit_prob == 1.0, "what is heard has no age"
    # Nobody else speaks for an engine that is heard.
    told.holds("e0", OTHER)
    told.event("ALL_CLEARED", "e0")
    assert matched(told.chain(LONG))[0] == ("e0", 128)
    assert matched(told.chain(OTHER)) == [("elsewhere", 128)]
    told.close()


# --- asking by hand ---------------------------------------------------------------------------------------------------


def test_a_question_by_hand(served, client, original_server, pb, tmp_path):
    theirs = original_server()
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(map(str, LONG)))
    for address in (served.grpc, theirs.address):
        told = Client(pb, address)
        told.holds("a", LONG)
        told.holds("b", LONG, 5)
        told.holds("c", OTHER)
        told.close()
        words = ["query", "--tenant", "t", "--scheme", "vllm", "--model", "m", "--server", f"http://{address}"]
        for how in ([], ["--block-size", "16"]):
            done = run(served.binary, *words, *how, "-o", "json", prompt)
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert answer["reason_code"] == "PREFIX_MATCH"
            assert [(score["replica_id"], score["matched_tokens"]) for score in answer["replica_scores"]] == [("a", 128), ("b", 80)]
            table = run(served.binary, *words, *how, prompt)
            assert table.returncode == 0, table.stderr
            first, second = table.stdout.splitlines()[1:3]
            assert first.split()[::2] == ["a", "128", "T1"] and second.split()[0] == "b", table.stdout
            assert "PREFIX_MATCH" in table.stdout
    assert not theirs.messages("lookup")[-1].token_ids, "hashed here: no token left the process"
