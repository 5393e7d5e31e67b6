#!/usr/bin/env python3
"""Many healthy streams: what they cost when nothing happens, and whether one of them is ever taken for silent.

    KVPLANE_BIN=target/release/kvplane PYTHONPATH=tests/interop .venv/bin/python scripts/streams.py heartbeats
    KVPLANE_BIN=target/release/kvplane PYTHONPATH=tests/interop .venv/bin/python scripts/streams.py flap

`heartbeats` prints the processor time of a plane over idle streams (STREAMS, default 300; DURATION in seconds, default 120; after
SETTLE seconds, default 100, when questions to replay sockets come at their longest interval): at most 1 % of a core. `flap` keeps the machine busy (LOAD busy processes, default 15) and looks for streams that are not live (DURATION,
default 3600); half of the engines are idle, half are under load.
"""

import json
import os
import signal
import subprocess
import sys
import time

from harness.plane import Plane, Sim, find_binary
from harness.wait import eventually

RANKS = 50  # of a simulated engine: a process each is too many
STREAMS = int(os.environ.get("STREAMS", "300"))
SETTLE = int(os.environ.get("SETTLE", "100"))
# Counted for healthy streams too: they are no sign of trouble.
HARMLESS = ("batches", "events", "blocks", "bytes", "probes", "pings", "pongs", "replays", "heartbeats", "stored", "removed")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ranks_of(plane):
    status, answer = plane.get("/v1/status")
    assert status == 200, answer
    return {(engine["id"], rank["rank"]): rank for engine in answer["engines"] for rank in engine["ranks"]}


class Fleet:
    """Simulated engines and a plane over them, all live."""

    def __init__(self, streams, load=0.0):
        binary = find_binary()
        self.sims = []
        words = []
        for at in range(0, streams, RANKS):
            busy = ["--load", load] if load and at // RANKS % 2 else []
            sim = Sim(binary, *busy, ranks=min(RANKS, streams - at))
            self.sims.append(sim)
            words += ["--engine", f"vllm={sim.events[0]},replay={sim.replay[0]},ranks={len(sim.events)},id=e{at}"]
        self.plane = Plane(binary, *words)
        self.pid = self.plane.process.pid
        eventually(self.is_live, lambda: f"all streams live\n{self.plane.log()[-2000:]}", 120)

    def is_live(self):
        return all(rank["continuity"] == "live" for rank in ranks_of(self.plane).values())

    def close(self):
        self.plane.close()
        for sim in self.sims:
            sim.close()


def heartbeats(seconds):
    shares = {}
    for streams in (0, STREAMS):
        fleet = Fleet(streams)
        time.sleep(SETTLE if streams else 5)  # what is done once after the start is over
        before, begun = processor_seconds(fleet.pid), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        shares[streams] = (processor_seconds(fleet.pid) - before) / took * 100
        print(f"{streams:>5} idle streams: {shares[streams]:.2f} % of a core over {took:.0f} s")
        if streams:
            ages = [rank.get("age_ms") for rank in ranks_of(fleet.plane).values()]
            told = [age for age in ages if age is not None]
            print(f"greatest age of a stream: {max(told)} ms" if told else "this kvplane does not tell ages")
        fleet.close()
    cost = shares[STREAMS] - shares[0]
    print(json.dumps({"streams": STREAMS, "percent_of_a_core": round(cost, 2), "budget": 1.0}))
    return cost <= 1.0


def flap(seconds):
    fleet = Fleet(STREAMS, load=5.0)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(os.environ.get("LOAD", "15")))]
    first, seen, oldest, polls = ranks_of(fleet.plane), {}, 0, 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for name, rank in ranks_of(fleet.plane).items():
                oldest = max(oldest, rank.get("age_ms") or 0)
                if rank["continuity"] != "live":
                    seen.setdefault(name, []).append((round(seconds - (end - time.monotonic())), rank["continuity"]))
            polls += 1
            time.sleep(0.2)
        counted = {}
        for name, rank in ranks_of(fleet.plane).items():
            for key, value in rank["counters"].items():
                grown = value - first[name]["counters"].get(key, 0) if isinstance(value, int) else 0
                if grown and not any(word in key for word in HARMLESS):
                    counted[key] = counted.get(key, 0) + grown
    finally:
        for process in busy:
            process.send_signal(signal.SIGKILL)
            process.wait()
        fleet.close()
    flapped = [key for key in counted if any(word in key for word in ("disconnect", "restart", "silen", "gap", "stale"))]
    for name, times in list(seen.items())[:20]:
        print(f"{name}: {times[:5]}")
    figures = {
        "seconds": seconds, "streams": STREAMS, "polls": polls, "streams_not_live": len(seen), "oldest_ms": oldest, "counters": counted,
    }
    print(json.dumps(figures))
    return not seen and not flapped


if __name__ == "__main__":
    mode = sys.argv[1] if len(sys.argv) == 2 else ""
    modes = {"heartbeats": (heartbeats, 120), "flap": (flap, 3600)}
    if mode not in modes:
        raise SystemExit(__doc__)
    run, default = modes[mode]
    sys.exit(0 if run(int(os.environ.get("DURATION", default))) else 1)
