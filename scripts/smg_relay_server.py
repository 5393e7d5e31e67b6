"""SMG's own Python relay behind a gRPC server: the peer of the relay benchmark.

usage: smg_relay_server.py EVENTS_ADDRESS GRPC_PORT
"""

import asyncio
import sys

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2_grpc
from smg_grpc_servicer import kv_relay


class Engine(vllm_engine_pb2_grpc.VllmEngineServicer):
    def __init__(self, events: str) -> None:
        self.events = events

    async def SubscribeKvEvents(self, request, context):
        source = kv_relay.RankSource(0, self.events, None)
        start = request.start_sequence_number
        async for batch in kv_relay.relay([source], kv_relay.Engine.VLLM, start, context, hwm=0):
            yield batch


async def main() -> None:
    events, port = sys.argv[1], sys.argv[2]
    server = grpc.aio.server()
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(Engine(events), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main())
