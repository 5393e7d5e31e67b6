// What links and counts show of the fleet, and what an empty one says.

import { make, severity, standing } from "./words.js";

/** By the name in the address: in words, and which ranks. */
export const SHOWS = {
  sick: ["needs attention", (rank) => severity(rank) > 0],
  exact: ["exact", (rank) => standing(rank) === "exact" && !rank.trouble],
  less: ["less than exact", (rank) => !["exact", "away"].includes(standing(rank))],
  away: ["away", (rank) => standing(rank) === "away"],
};

/** What to do with a plane without engines. */
export const welcome = () => [
  make("h1", {}, "No engines yet"),
  make("p", {}, "Start vLLM with events on:"),
  make("pre", {}, `vllm serve MODEL --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'`),
  make("p", {}, "Then add it:"),
  make("pre", {}, "kvplane engines add vllm-0 --engine vllm=tcp://HOST:5557,replay=tcp://HOST:5558,model=MODEL"),
  make("p", {}, "No GPU? This takes the place of vLLM, at the same ports:"),
  make("pre", {}, "kvplane sim --model MODEL --load 5"),
];
