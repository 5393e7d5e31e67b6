"""A large fleet in a browser."""

import time
from contextlib import ExitStack

import pytest
from measure import FRAMES, many, raise_descriptors
from page import Page

FRAMES_A_SECOND = 30
# A machine may be busy with something else for a while.
PATIENCE = 60


@pytest.mark.alone
@pytest.mark.skipif(raise_descriptors() < 4096, reason="fewer than 4,096 descriptors may be had: raise the hard limit (ulimit -Hn)")
def test_two_hundred_engines_go_smoothly(binary, chromium):
    with ExitStack() as stack:
        plane, ranks = many(stack, binary, 200, 100)
        seen = Page(chromium, plane.http).open().live()
        seen.until("return document.querySelectorAll('.cell').length === arguments[0]", ranks)
        chromium.set_script_timeout(60)
        deadline = time.monotonic() + PATIENCE
        frames = []
        while not frames or (frames[-1] < FRAMES_A_SECOND and time.monotonic() < deadline):
            frames.append(chromium.execute_async_script(FRAMES, 2)["fps"])
        print(f"{frames} frames a second")
        assert frames[-1] >= FRAMES_A_SECOND, frames
        seen.check_clean()
