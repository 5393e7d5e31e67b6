"""The services of `kvplane sim`, called with SMG's own client: messages as PyPI's smg-grpc-proto has them, answers as its servicers give them."""

import math

import grpc
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from smg_grpc_proto.generated import (
    common_pb2, mlx_engine_pb2, mlx_engine_pb2_grpc, sglang_scheduler_pb2, sglang_scheduler_pb2_grpc,
    tokenspeed_scheduler_pb2, tokenspeed_scheduler_pb2_grpc, trtllm_service_pb2, trtllm_service_pb2_grpc,
    vllm_engine_pb2, vllm_engine_pb2_grpc,
)

from harness.plane import Process, http

VLLM = vllm_engine_pb2, vllm_engine_pb2_grpc.VllmEngineStub
SGLANG = sglang_scheduler_pb2, sglang_scheduler_pb2_grpc.SglangSchedulerStub
TOKENSPEED = tokenspeed_scheduler_pb2, tokenspeed_scheduler_pb2_grpc.TokenSpeedSchedulerStub
TRTLLM = trtllm_service_pb2, trtllm_service_pb2_grpc.TrtllmServiceStub
MLX = mlx_engine_pb2, mlx_engine_pb2_grpc.MlxEngineStub
OPERABLE = [("vllm-0.32", VLLM), ("sglang-0.5.22", SGLANG), ("tokenspeed-0.1.1", TOKENSPEED)]


@pytest.fixture
def served(sim):
    """A simulator with two ranks, its messages and a stub of its service."""
    channels = []

    def make(profile, service, *words):
        messages, stub = service
        one = sim("--profile", profile, "--grpc", "127.0.0.1:0", "--block-size", 4, *words, ranks=2)
        channels.append(grpc.insecure_channel(one.grpc))
        return one, messages, stub(channels[-1])

    yield make
    for channel in channels:
        channel.close()


def known(message):
    """A message, all of whose fields SMG's contract has."""
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type and not field.message_type.GetOptions().map_entry:
            for nested in value if field.is_repeated else [value]:
                known(nested)
    return message


def fill(sim):
    for rank in range(2):
        sim.complete([rank + 1] * 9, 1, rank=rank)


def blocks(sim):
    return [len(rank["blocks"]) for rank in sim.truth()["ranks"]]


@pytest.mark.parametrize(("profile", "service"), OPERABLE)
def test_an_engine_is_flushed_and_says_so(served, profile, service):
    one, _, stub = served(profile, service)
    fill(one)
    assert blocks(one) == [2, 2]
    answer = known(stub.FlushCache(common_pb2.FlushCacheRequest()))
    assert answer.success and answer.message
    assert blocks(one) == [0, 0]
    # Half of the ranks refuse: no success, although the others have flushed.
    fill(one)
    one.operations(busy=True, ranks=[1])
    answer = known(stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=0)))
    assert not answer.success and answer.message
    assert blocks(one) == [0, 2]


def test_what_servicers_make_of_timeouts(served):
    one, _, stub = served("vllm-0.32", VLLM)
    for seconds in (-1, math.nan, math.inf):
        with pytest.raises(grpc.RpcError) as error:
            stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=seconds))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    one.operations(busy=True)
    with pytest.raises(grpc.RpcError) as error:
        stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=0.2))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = stub.FlushCache.future(common_pb2.FlushCacheRequest(timeout_s=60))
    one.operations()
    assert waiting.result(timeout=30).success


@pytest.mark.parametrize(("profile", "service"), OPERABLE[1:])
def test_recordings_take_all_options(served, profile, service):
    one, _, stub = served(profile, service)
    options = {
        "output_dir": "/traces", "start_step": 1, "num_steps": 2, "activities": ["CPU", "GPU"], "with_stack": False,
        "record_shapes": True, "profile_by_stage": True,
    }
    assert not known(stub.StopProfile(common_pb2.StopProfileRequest())).success, "there is none"
    assert known(stub.StartProfile(common_pb2.StartProfileRequest(**options))).success
    again = known(stub.StartProfile(common_pb2.StartProfileRequest()))
    assert not again.success and "already" in again.message
    assert one.truth()["profiles"] == [options]
    assert known(stub.StopProfile(common_pb2.StopProfileRequest())).success
    assert not one.truth()["profiling"]


def test_vllm_has_its_options_from_its_launch(served):
    one, _, stub = served("vllm-0.32", VLLM)
    with pytest.raises(grpc.RpcError) as error:
        stub.StartProfile(common_pb2.StartProfileRequest(num_steps=2))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "num_steps" in error.value.details()
    assert known(stub.StartProfile(common_pb2.StartProfileRequest())).success
    assert one.truth()["profiling"]
    assert known(stub.StopProfile(common_pb2.StopProfileRequest())).success
    _, _, plain = served("vllm-0.32", VLLM, "--without", "profiler")
    with pytest.raises(grpc.RpcError) as error:
        plain.StartProfile(common_pb2.StartProfileRequest())
    assert error.value.code() == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(("profile", "service"), OPERABLE)
def test_info_loads_and_health(served, profile, service):
    one, messages, stub = served(profile, service)
    fill(one)
    loads = known(stub.GetLoads(messages.GetLoadsRequest(include=["all"])))
    assert (loads.dp_rank_count, [load.dp_rank for load in loads.loads]) == (2, [0, 1])
    assert [load.num_used_tokens for load in loads.loads] == [8, 8]
    assert all(load.max_total_num_tokens == 4096 and load.token_usage == 8 / 4096 for load in loads.loads)
    info = known(stub.GetServerInfo(messages.GetServerInfoRequest()))
    if service is VLLM:
        assert (info.data_parallel_size, info.block_size) == (2, 4)
    else:
        assert (info.server_args["dp_size"], info.server_args["page_size"]) == (2, 4)
        assert info.max_total_num_tokens == 4096
    assert known(stub.HealthCheck(messages.HealthCheckRequest())).healthy
    one.operations(ill=True)
    assert not known(stub.HealthCheck(messages.HealthCheckRequest())).healthy


def test_tensorrt_has_health_and_info_alone(served):
    one, messages, stub = served("trtllm-zmq", TRTLLM)
    assert known(stub.HealthCheck(messages.HealthCheckRequest())).status == "OK"
    assert known(stub.GetServerInfo(messages.GetServerInfoRequest())).world_size == 2
    assert http("POST", one.http + "/flush_cache")[0] == 404


@pytest.mark.parametrize(("answer", "code"), [
    ("error", grpc.StatusCode.INTERNAL), ("broken", grpc.StatusCode.UNAVAILABLE), ("garbage", grpc.StatusCode.INTERNAL),
    ("hang", grpc.StatusCode.DEADLINE_EXCEEDED), ("late", grpc.StatusCode.DEADLINE_EXCEEDED),
])
def test_calls_that_go_wrong(served, answer, code):
    one, messages, stub = served("sglang-0.5.22", SGLANG)
    fill(one)
    one.operations(answer=answer, verbs=["flush"])
    with pytest.raises(grpc.RpcError) as error:
        stub.FlushCache(common_pb2.FlushCacheRequest(), timeout=2)
    assert error.value.code() == code, error.value
    assert blocks(one) == ([2, 2] if answer in ("error", "hang") else [0, 0])
    assert stub.HealthCheck(messages.HealthCheckRequest()).healthy, "the others are answered rightly"


@pytest.mark.parametrize(("name", "service"), [("vllm", VLLM), ("sglang", SGLANG), ("tokenspeed", TOKENSPEED), ("trtllm", TRTLLM), ("mlx", MLX)])
def test_a_relay_has_what_its_engine_has(binary, name, service):
    messages, stub = service
    relay = Process(binary, "sim", "--profile", "grpc", "--events", "grpc://127.0.0.1:0", "--service", name, "--log-format", "json")
    try:
        address = relay.logged("grpc")[0]["address"]
        with grpc.insecure_channel(address) as channel:
            client = stub(channel)
            health = known(client.HealthCheck(messages.HealthCheckRequest()))
            assert health.status == "OK" if name == "trtllm" else health.healthy
            known(client.GetServerInfo(messages.GetServerInfoRequest()))
            if name in ("trtllm", "mlx"):
                with pytest.raises(grpc.RpcError) as error:
                    vllm_engine_pb2_grpc.VllmEngineStub(channel).FlushCache(common_pb2.FlushCacheRequest())
                assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
            else:
                assert known(client.FlushCache(common_pb2.FlushCacheRequest())).success
                # It is controlled at the same address.
                assert http("POST", f"http://{address}/sim/fault", {"operations": {"no_effect": True}})[0] == 200
                assert known(client.FlushCache(common_pb2.FlushCacheRequest())).success
        assert http("GET", f"http://{address}/sim/state")[1]["asked"]
    finally:
        relay.close()
