"""Run by Dynamo's Python: a `KvEventPublisher` that listens to ZeroMQ, without any other service. Its log says what it passes
on: python dynamo_publisher.py EVENTS BLOCK_SIZE
"""

import asyncio
import sys

from dynamo.llm import KvEventPublisher
from dynamo.runtime import DistributedRuntime


async def handler(request, context=None):
    yield {}


async def main(events, block_size):
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("kvplane.test.generate")
    publisher = KvEventPublisher(
        endpoint=endpoint, kv_block_size=block_size, enable_local_indexer=True, zmq_endpoint=events, zmq_topic=""
    )
    await endpoint.serve_endpoint(handler)
    del publisher


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
