"""Follows an engine's events as SMG's gateway does, and says when it is told something: `python smg_follow.py ADDRESS`.

A line of JSON for every batch and for the end of the subscription, with the time on the system's monotonic clock.
"""

import json
import sys
import time

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc


def say(**words):
    print(json.dumps({"at": time.monotonic(), **words}), flush=True)


def main(address):
    with grpc.insecure_channel(address) as channel:
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=0)
        try:
            for batch in vllm_engine_pb2_grpc.VllmEngineStub(channel).SubscribeKvEvents(request):
                say(sequence=batch.sequence_number)
        except grpc.RpcError as error:
            say(end=error.code().name)
        else:
            say(end="OK")


if __name__ == "__main__":
    main(sys.argv[1])
