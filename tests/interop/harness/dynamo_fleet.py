"""Runs in Dynamo's environment: workers that serve and publish nothing, and routers, by commands on standard input.

Each line is a JSON object `{"do": name, …}`; each answer one line of JSON. Workers are instances of one endpoint, and answer any prompt
with one token of their own; a router is Dynamo's own `KvRouter`.
"""

import asyncio
import json
import sys

from dynamo.llm import KvRouter, KvRouterConfig, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime


def runtime():
    return DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq")


class Fleet:
    def __init__(self, endpoint, model, block_size):
        self.endpoint, self.model, self.block_size = endpoint, model, block_size
        self.kept, self.routers = [], {}

    async def worker(self, token):
        """Serves an instance that answers with this token, and returns its id."""
        own = runtime()
        endpoint = own.endpoint(self.endpoint)

        async def generate(request):
            yield {"token_ids": [token], "finish_reason": "stop"}

        config = ModelRuntimeConfig()
        config.enable_local_indexer = True
        config.total_kv_blocks = 100_000
        await register_model(
            ModelInput.Tokens, ModelType.Completions, endpoint, self.model, "m", worker_type=WorkerType.Aggregated,
            kv_cache_block_size=self.block_size, runtime_config=config,
        )
        self.kept.append((own, asyncio.ensure_future(endpoint.serve_endpoint(generate))))
        return endpoint.connection_id()

    async def router(self, name, workers):
        own = runtime()
        endpoint = own.endpoint(self.endpoint)
        client = await endpoint.client()
        while len(client.instance_ids()) < workers:
            await asyncio.sleep(0.02)
        self.routers[name] = KvRouter(endpoint, self.block_size, KvRouterConfig(router_temperature=0.0))
        self.kept.append((own, endpoint, client))
        return sorted(client.instance_ids())

    async def generate(self, name, tokens, worker):
        """Has a worker compute a prompt, and waits until it is done."""
        stream = await self.routers[name].generate(tokens, "m", stop_conditions={"max_tokens": 1}, worker_id=worker)
        return len([answer async for answer in stream])

    async def scores(self, name, tokens):
        """What each worker holds of a prompt, by the router's index."""
        return (await self.routers[name].get_overlap_scores(tokens))["workers"]

    async def best(self, name, tokens):
        return list(await self.routers[name].best_worker(tokens))

    async def dump(self, name):
        return json.loads(await self.routers[name].dump_events())


async def main():
    fleet, loop = Fleet(sys.argv[1], sys.argv[2], int(sys.argv[3])), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        try:
            answer = {"answer": await getattr(fleet, asked.pop("do"))(**asked)}
        except Exception as error:  # noqa: BLE001: whoever asks wants to know
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


asyncio.run(main())
