"""What the dashboard costs with 500 engines: CPU of `kvplane serve` without and with a watcher, and frames a second in the page."""

import argparse
import os
import resource
import statistics
import time
from contextlib import ExitStack, closing

from harness.plane import Plane, Sim, find_binary, http
from harness.wait import eventually
from page import Page, start_chromium

TICKS = os.sysconf("SC_CLK_TCK")
FRAMES = """
    const [seconds, done] = [arguments[0], arguments[1]];
    const gaps = [];
    let last = performance.now();
    const begun = last;
    const frame = (now) => {
        gaps.push(now - last);
        last = now;
        if (now - begun < seconds * 1000) requestAnimationFrame(frame);
        else done({fps: (gaps.length * 1000) / (now - begun), longest: Math.max(...gaps)});
    };
    requestAnimationFrame(frame);
"""


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def over(seconds, plane):
    """CPU of the plane, in % of one core, and events a second, over some time."""
    counted = lambda: sum(rank["counters"]["events"] for engine in plane.get("/v1/status")[1]["engines"] for rank in engine["ranks"])
    events, began, used = counted(), time.monotonic(), cpu_seconds(plane.process.pid)
    time.sleep(seconds)
    took, used = time.monotonic() - began, cpu_seconds(plane.process.pid) - used
    return 100 * used / took, (counted() - events) / took


def raise_descriptors():
    """To what may be had: shells often begin with 1,024, and a rank takes seven."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def many(stack, binary, engines, load):
    """A plane that follows so many engines, of which every tenth has two ranks, and how many ranks they have.

    One simulator publishes for all of them. Its batches name their ranks, so each stream keeps the simulator's number of its rank.
    """
    raise_descriptors()
    ranks = [engine for engine in range(engines) for _ in range(2 if engine % 10 == 0 else 1)]
    sim = stack.enter_context(closing(Sim(binary, "--load", load, "--blocks", 512, ranks=len(ranks))))
    plane = stack.enter_context(closing(Plane(binary)))
    for rank, (engine, events, replay) in enumerate(zip(ranks, sim.events, sim.replay, strict=True)):
        about = {"instance_id": engine + 1, "dp_rank": rank, "model_name": "sim", "block_size": 16, "endpoint": events, "replay_endpoint": replay}
        status, body = http("POST", f"{plane.http}/register", about)
        assert status in (200, 201), body

    def followed():
        there = [rank for engine in plane.get("/v1/status")[1]["engines"] for rank in engine["ranks"]]
        return len(there) == len(ranks) and all(rank["continuity"] == "live" for rank in there)

    eventually(followed, "all live", 60.0)
    return plane, len(ranks)


def main(engines, load, seconds, rounds):
    with ExitStack() as stack:
        plane, ranks = many(stack, find_binary(), engines, load)
        driver = start_chromium()
        stack.callback(driver.quit)
        driver.set_script_timeout(seconds * 4)
        seen = Page(driver, plane.http)
        rows = []
        for _ in range(rounds):
            driver.get("about:blank")
            alone, rate = over(seconds, plane)
            seen.open().live()
            seen.until("return document.querySelectorAll('.cell').length === arguments[0]", ranks)
            watched, _ = over(seconds, plane)
            frames = driver.execute_async_script(FRAMES, seconds)
            rows.append((alone, watched, watched - alone, rate, frames["fps"], frames["longest"]))
            print("CPU alone {:.1f} %, watched {:.1f} %, beyond {:.1f} %, {:.0f} events/s; {:.1f} frames/s, longest {:.0f} ms".format(*rows[-1]), flush=True)
        print("median: beyond {:.1f} % of a core, {:.1f} frames/s".format(statistics.median(row[2] for row in rows), statistics.median(row[4] for row in rows)))


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--engines", type=int, default=500)
    words.add_argument("--load", type=float, default=400, help="requests a second, over all engines")
    words.add_argument("--seconds", type=float, default=10)
    words.add_argument("--rounds", type=int, default=3)
    given = words.parse_args()
    main(given.engines, given.load, given.seconds, given.rounds)
