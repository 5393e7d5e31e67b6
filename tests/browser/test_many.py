"""A large fleet in a browser.

Frames a second depend on the machine: `make bench-dashboard` measures them. What decides about them is how much of the page an update
changes, and that is counted here.
"""

import time
from contextlib import ExitStack

import pytest
from harness.plane import free_ports, http
from measure import FRAMES, many, raise_descriptors
from page import Page

FRAMES_A_SECOND = 30
# Looks for a name, and says what is shown when the next frame is drawn: nothing may keep the page busy for longer.
FIND = """
    const [name, done] = [arguments[0], arguments[1]];
    const filter = document.getElementById('filter');
    filter.value = name;
    filter.dispatchEvent(new Event('input'));
    requestAnimationFrame(() => done([...document.querySelectorAll('.engine:not([hidden]) h2 a')].map((link) => link.title)));
"""
# Changes of the page in each of so many updates.
CHANGES = """
    const [updates, done] = [arguments[0], arguments[1]];
    const counts = [];
    const observer = new MutationObserver((records) => {
        counts.push(records.length);
        if (counts.length < updates) return;
        observer.disconnect();
        done(counts);
    });
    observer.observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
"""
# Cells that fit on the screen and a little beyond, and what may change of each, and a little for the rest of the page. Before cells out
# of sight were left alone, there were 2,200 changes.
CHANGES_AN_UPDATE = 600
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


@pytest.mark.alone
@pytest.mark.skipif(raise_descriptors() < 8192, reason="fewer than 8,192 descriptors may be had: raise the hard limit (ulimit -Hn)")
def test_five_hundred_engines_render_filter_and_respond(binary, chromium):
    with ExitStack() as stack:
        plane, ranks = many(stack, binary, 500, 400)
        seen = Page(chromium, plane.http).open().live()
        seen.until("return document.querySelectorAll('.cell').length === arguments[0]", ranks)
        seen.shows(f"500 engines · {ranks} ranks", "#totals")
        # Trouble first, then by name as people count.
        names = seen.run("return [...document.querySelectorAll('.engine h2 a')].slice(0, 3).map((link) => link.title)")
        assert names == ["instance-1", "instance-2", "instance-3"]
        # News go on meanwhile.
        for _ in range(3):
            assert chromium.execute_async_script(FIND, "instance-499") == ["instance-499"]
            assert len(chromium.execute_async_script(FIND, "")) == 500
        # What an update costs goes with the screen and not with the fleet.
        chromium.set_script_timeout(60)
        counts = chromium.execute_async_script(CHANGES, 12)
        print(f"{counts} changes of the page")
        assert max(counts) <= CHANGES_AN_UPDATE, counts
        # Cards stay when an engine comes or goes.
        seen.run("for (const card of document.querySelectorAll('.engine')) card.isOld = true")
        another = {"id": "zz-another", "kind": "vllm", "events": f"tcp://127.0.0.1:{free_ports(1)[0]}", "model": "sim"}
        status, body = http("POST", f"{plane.http}/v1/engines", another)
        assert status in (200, 201), body
        seen.until("return document.querySelectorAll('.engine').length === 501")
        assert seen.run("return [...document.querySelectorAll('.engine')].filter((card) => card.isOld).length") == 500
        http("DELETE", f"{plane.http}/v1/engines/zz-another")
        seen.until("return document.querySelectorAll('.engine').length === 500")
        # The last of them is drawn when it is scrolled to, and leads to its page.
        old = seen.run("return document.querySelector('.engine:last-child .cell').title")
        seen.run("document.querySelector('.engine:last-child .cell').scrollIntoView()")
        seen.until("return document.querySelector('.engine:last-child .cell').title !== arguments[0]", old, what="the last cell as it is now")
        seen.run("document.querySelector('.engine:last-child .cell').click()")
        seen.until("return location.hash === '#/engine/instance-500'", what="the page of the last engine")
        seen.check_clean()
