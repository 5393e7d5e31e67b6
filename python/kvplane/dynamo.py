"""The way into Dynamo's frontend and router: ``python -m kvplane.dynamo``.

Dynamo's router hears of a worker's blocks from a ``KvEventPublisher``. This program makes one for each worker and feeds it with
what kvplane publishes again (``republish`` with ``announce = "state"``): exact through gaps, restarts and late starts. The workers
themselves publish nothing to Dynamo.

It needs Dynamo's own package, ``ai-dynamo``, which kvplane does not install.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from importlib import import_module
from typing import Any, NamedTuple, Optional

__all__ = ["Bridge", "Worker", "main"]

_log = logging.getLogger("kvplane.dynamo")


class Worker(NamedTuple):
    """One rank of a worker, as Dynamo numbers it, and where kvplane publishes its events again."""

    worker_id: int
    rank: int
    events: str

    @classmethod
    def parse(cls, text: str) -> Worker:
        """``ID[:RANK]=ADDRESS``, as Dynamo's own indexer has it."""
        name, equals, events = text.partition("=")
        worker_id, colon, rank = name.partition(":")
        if not equals or not events.startswith(("tcp://", "ipc://")):
            raise ValueError(f"{text!r}: write ID[:RANK]=tcp://HOST:PORT")
        try:
            worker = cls(int(worker_id), int(rank) if colon else 0, events)
        except ValueError:
            raise ValueError(f"{text!r}: a worker's id and its rank are whole numbers") from None
        if not 0 <= worker.worker_id < 2**64 or not 0 <= worker.rank < 2**32:
            raise ValueError(f"{text!r}: an id has 64 bits, a rank 32, and neither is negative")
        return worker


class Bridge:
    """Publishers for the workers of one endpoint. Use it inside a process that has a ``DistributedRuntime`` already."""

    def __init__(self, endpoint: Any, block_size: int, topic: str = "") -> None:
        if block_size <= 0:
            raise ValueError(f"block_size must be positive, not {block_size}")
        self._endpoint = endpoint
        self._block_size = block_size
        self._topic = topic
        self._publishers: dict[tuple[int, int], Any] = {}

    def add(self, worker: Worker) -> None:
        """Feeds Dynamo with the events of one rank. The router takes the whole state when it first hears of it."""
        key = (worker.worker_id, worker.rank)
        if key in self._publishers:
            raise ValueError(f"worker {worker.worker_id} rank {worker.rank} is there already")
        self._publishers[key] = import_module("dynamo.llm").KvEventPublisher(
            endpoint=self._endpoint,
            worker_id=worker.worker_id,
            kv_block_size=self._block_size,
            dp_rank=worker.rank,
            # A router that comes later asks the publisher for everything.
            enable_local_indexer=True,
            zmq_endpoint=worker.events,
            zmq_topic=self._topic,
        )
        _log.info("worker %s rank %s: from %s", worker.worker_id, worker.rank, worker.events)

    def remove(self, worker_id: int, rank: int = 0) -> bool:
        """Stops feeding one rank; the router forgets it. Says whether it was there."""
        publisher = self._publishers.pop((worker_id, rank), None)
        if publisher is None:
            return False
        publisher.shutdown()
        return True

    def close(self) -> None:
        """Stops all."""
        for worker_id, rank in list(self._publishers):
            self.remove(worker_id, rank)

    def __len__(self) -> int:
        return len(self._publishers)


def _arguments(words: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kvplane.dynamo",
        description="Feeds Dynamo's router with what kvplane publishes again, one KvEventPublisher for each worker.",
    )
    parser.add_argument("--endpoint", required=True, metavar="NAMESPACE.COMPONENT.ENDPOINT", help="the workers' endpoint in Dynamo")
    parser.add_argument("--block-size", required=True, type=int, help="tokens per block, as the workers and the router have it")
    parser.add_argument(
        "--worker", required=True, action="append", metavar="ID[:RANK]=ADDRESS",
        help="a worker's instance id in Dynamo, its rank, and where kvplane publishes it again; once for each rank",
    )
    parser.add_argument("--topic", default="", help="the topic of what is published again (default: empty)")
    parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), help="as for Dynamo's programs")
    parser.add_argument("--request-plane", default=os.environ.get("DYN_REQUEST_PLANE", "tcp"), help="as for Dynamo's programs")
    parser.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE"), help="as for Dynamo's programs")
    arguments = parser.parse_args(words)
    try:
        arguments.worker = [Worker.parse(text) for text in arguments.worker]
    except ValueError as error:
        parser.error(f"--worker {error}")
    if len({worker[:2] for worker in arguments.worker}) < len(arguments.worker):
        parser.error("--worker: one rank of a worker is there twice")
    if arguments.block_size <= 0:
        parser.error(f"--block-size must be positive, not {arguments.block_size}")
    return arguments


async def _serve(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    runtime = import_module("dynamo.runtime").DistributedRuntime(
        loop, arguments.discovery_backend, arguments.request_plane, event_plane=arguments.event_plane
    )
    bridge = Bridge(runtime.endpoint(arguments.endpoint), arguments.block_size, arguments.topic)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        for worker in arguments.worker:
            bridge.add(worker)
        _log.info("feeding %s with %d ranks", arguments.endpoint, len(bridge))
        await stop.wait()
    finally:
        bridge.close()
        runtime.shutdown()


def main(words: Optional[list[str]] = None) -> int:
    arguments = _arguments(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        import_module("dynamo.llm")
    except ImportError as error:
        print(f"kvplane.dynamo: Dynamo is not installed here ({error}): pip install ai-dynamo", file=sys.stderr)
        return 1
    asyncio.run(_serve(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
