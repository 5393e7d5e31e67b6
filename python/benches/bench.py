"""What calls cost from Python, beside the same calls from Rust.

    python python/benches/bench.py [RUST]

RUST is the binary of crates/embed/examples/embed_bench. Figures are of this machine and this moment: compare rows of one run.
"""

import os
import statistics
import subprocess
import sys
import threading
import time

import kvplane

BLOCK = 16
BLOCKS = 8  # of a prompt, and of a frame
HELD = 12_500  # prompts: 100,000 blocks
ROUND = 100
ROUNDS = 300
RUNS = 7


def hashes(prompt):
    return [(n + 1) * 0x9E37_79B9_7F4A_7C15 % 2**64 for n in range(prompt * BLOCKS, (prompt + 1) * BLOCKS)]


def stored(prompt):
    first = prompt * BLOCKS * BLOCK
    return kvplane.encode([{
        "type": "BlockStored", "block_hashes": hashes(prompt), "block_size": BLOCK,
        "token_ids": [n % 150_000 for n in range(first, first + BLOCKS * BLOCK)],
        "medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention",
    }], timestamp=1.0, rank=0)


def removed(prompt):
    return kvplane.encode([{"type": "BlockRemoved", "block_hashes": hashes(prompt)[::-1], "medium": "GPU", "group_idx": 0}], timestamp=1.0, rank=0)


def hand_over(recorder, frames):
    """Microseconds a frame."""
    apply = recorder.apply_frame
    begun = time.perf_counter()
    for frame in frames:
        apply(None, frame)
    return (time.perf_counter() - begun) * 1e6 / len(frames)


def typical(values):
    """What a tenth of all stays below: a machine that does other things too is often late, and never early."""
    values = sorted(values)
    return values[len(values) // 10]


def filled():
    recorder = kvplane.Recorder("bench")
    hand_over(recorder, [stored(prompt) for prompt in range(HELD)])
    return recorder


def steady(recorder):
    """Microseconds of a store and of a removal, with 100,000 blocks held."""
    all_removed = [removed(prompt) for prompt in range(ROUNDS * ROUND)]
    all_stored = [stored(prompt) for prompt in range(HELD, HELD + ROUNDS * ROUND)]
    stores, removals = [], []
    for first in range(0, ROUNDS * ROUND, ROUND):
        removals.append(hand_over(recorder, all_removed[first : first + ROUND]))
        stores.append(hand_over(recorder, all_stored[first : first + ROUND]))
    return typical(stores), typical(removals)


def call_us(recorder):
    """A call that does next to nothing, and releases the interpreter's lock for it."""
    digest = recorder.digest

    def run():
        begun = time.perf_counter()
        for _ in range(ROUND):
            digest()
        return (time.perf_counter() - begun) * 1e6 / ROUND

    return typical([run() for _ in range(ROUNDS)])


def elapsed_ms(what):
    def run():
        begun = time.perf_counter()
        what()
        return (time.perf_counter() - begun) * 1e3

    return typical([run() for _ in range(RUNS)])


def threads_rate(count, frames, blocks):
    """Frames a second of `count` threads, each with a recorder of its own."""
    recorders = [kvplane.Recorder(f"bench-{at}") for at in range(count)]
    start = threading.Barrier(count + 1)

    def work(recorder):
        start.wait()
        hand_over(recorder, frames)

    workers = [threading.Thread(target=work, args=(recorder,)) for recorder in recorders]
    for worker in workers:
        worker.start()
    start.wait()
    begun = time.perf_counter()
    for worker in workers:
        worker.join()
    return count * len(frames) / (time.perf_counter() - begun)


def longest_pause_ms(work):
    """How long a thread that only looks at the clock is kept from it while `work` runs: the interpreter's lock, and the machine."""
    done, pauses = threading.Event(), []

    def look():
        longest, last = 0.0, time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        pauses.append(longest * 1e3)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        work()
    finally:
        done.set()
        looker.join()
    return pauses[0]


def main():
    rust = {}
    if len(sys.argv) > 1:
        lines = subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        rust = {name: float(value) for name, value in map(str.split, lines)}
    print(f"## From Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    recorder = filled()
    store, removal = steady(recorder)
    call = call_us(recorder)
    print("| call | Python us | Rust us | times, beyond the call's own cost |\n|---|---|---|---|")
    for name, ours, theirs in (("store", store, "store_us"), ("removal", removal, "removal_us")):
        theirs = rust.get(theirs)
        beside = f"{theirs:.2f} | {(ours - call) / theirs:.2f}" if theirs else "- | -"
        print(f"| `apply_frame`, {name} of {BLOCKS} blocks | {ours:.2f} | {beside} |")
    print(f"| nothing (`digest`) | {call:.2f} | - | - |\n")

    last = recorder.snapshot().last_event_id
    print("| | ms |\n|---|---|")
    print(f"| `get_events_json` of 1,000 events | {elapsed_ms(lambda: recorder.get_events_json(last - 999)):.2f} |")
    print(f"| `get_events_json` of 100,000 blocks | {elapsed_ms(recorder.get_events_json):.1f} |")
    print(f"| `snapshot` of 100,000 blocks | {elapsed_ms(recorder.snapshot):.1f} |")
    sys.setswitchinterval(1e-4)
    for name, work in (("nothing", lambda: time.sleep(0.02)), ("`snapshot`", recorder.snapshot), ("`get_events_json` of 100,000 blocks", recorder.get_events_json)):
        pauses = sorted(longest_pause_ms(work) for _ in range(15))
        print(f"| another thread's longest pause beside {name}, median and least | {pauses[7]:.2f}, {pauses[0]:.2f} |")
    sys.setswitchinterval(5e-3)

    print("\n| blocks a frame | 1 thread, frames/s | 2 threads | 8 threads |\n|---|---|---|---|")
    for blocks in (1, 16, 64):
        prompts = range(0, HELD // 4, blocks)
        frames = [kvplane.encode([event for at in range(prompt, prompt + blocks) for event in kvplane.decode(stored(at))["events"]]) for prompt in prompts]
        rates = [statistics.median(threads_rate(count, frames, blocks) for _ in range(5)) for count in (1, 2, 8)]
        print(f"| {blocks * BLOCKS} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |")


if __name__ == "__main__":
    main()
