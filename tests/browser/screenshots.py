"""Takes the pictures of docs/images: a fleet of every kind of engine that something has happened to."""

import base64
import sys
from contextlib import ExitStack
from pathlib import Path

from fleet import Fleet
from harness.plane import ROOT, find_binary, http
from page import Page, start_chromium

IMAGES = ROOT / "docs" / "images"
PROFILES = {
    "llama-0": "vllm-0.32", "llama-1": "vllm-0.32", "llama-2": "vllm-0.22", "llama-3": "vllm-0.32 --host-blocks 4096",
    "radix-0": "sglang-0.5.22 --host-blocks 4096", "radix-1": "sglang-0.5.22", "speed-0": "tokenspeed-0.1.1", "push-0": "trtllm-zmq",
}
SYSTEM = list(range(1000, 1640))  # a system prompt that several engines hold


def history(there, seen):
    """Makes happen what is worth a picture."""
    engines = dict(zip(PROFILES, there.sims, strict=True))
    for at, name in enumerate(("llama-0", "llama-1", "llama-2", "llama-3")):
        engines[name].complete(SYSTEM[: 640 - 160 * at], 1)
    for name in PROFILES:
        seen.cell(name, standing="exact")
    engines["speed-0"].operations(answer="error")
    http("POST", f"{there.plane.http}/flush_cache", {"engine": ["radix-0", "speed-0"], "proof_timeout_s": 3, "timeout_s": 2})
    seen.shows("flush not confirmed by the event stream in time", "#timeline")
    engines["radix-1"].fault(lose=1)
    seen.cell("radix-1", standing="lower")
    engines["llama-1"].fault(restart={"first_sequence": 40, "same_content": True})
    seen.shows("restart proven", "#timeline")
    for rank in (0, 1):
        seen.cell("llama-1", rank, standing="exact")
    # On top of the list, in every picture of the fleet.
    engines["llama-0"].fault(drop=1, rank=0)
    seen.shows("gap repaired", "#timeline")
    seen.cell("llama-0", standing="exact")
    # Plots reach from edge to edge.
    seen.go("#/engine/radix-0")
    seen.until("return document.querySelector('.axis')?.innerText.includes('25 s ago')")


def main(folder):
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        there = Fleet(find_binary(), stack, *PROFILES.values(), load=8, ranks=2, names=list(PROFILES))
        driver = start_chromium()
        stack.callback(driver.quit)
        seen = Page(driver, there.plane.http).open().live()
        history(there, seen)

        def take(name, fragment, width=1120, height=660, scheme="light"):
            seen.size(width, height)
            seen.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
            seen.go(fragment)
            seen.until("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
            if fragment == "#/ask":
                seen.ask(str(SYSTEM))
                seen.until("return document.querySelector('.holder')")
            picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
            path = folder / f"dashboard-{name}.png"
            path.write_bytes(base64.b64decode(picture))
            print(f"{path}: {path.stat().st_size // 1024} KiB")

        take("engine", "#/engine/radix-0", height=820)
        # A question first: the fleet's page begins with what questions found.
        take("ask", "#/ask")
        take("fleet", "#/", height=860)
        take("fleet-dark", "#/", height=860, scheme="dark")
        take("narrow", "#/", width=360, height=740)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
