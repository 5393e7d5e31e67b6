"""A plane that goes and comes back, and one that does not let everybody in."""

import time

import pytest

from harness.wait import eventually
from page import FOREIGN, Page


def test_a_page_recovers_when_the_plane_comes_back(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there).live()
    seen.cell("e0", standing="exact")
    first = seen.run("return document.querySelectorAll('#timeline li').length")
    assert first >= 2
    there.plane.stop()
    stopped = time.time() * 1000
    seen.shows("Can't reach kvplane", "#banner")
    seen.shows("not connected", "#link")
    there.start()
    seen.live()
    seen.until("return document.getElementById('banner').hidden")
    epoch = str(there.plane.wait_live("e0")["epoch"])
    seen.cell("e0", standing="exact", epoch=epoch)
    # Another run has another history.
    began = "return [...document.querySelectorAll('#timeline li')].filter((line) => line.innerText.includes('kvplane started')).length"
    seen.until(f"{began} === 1")
    oldest = seen.run("return Math.min(...[...document.querySelectorAll('#timeline time')].map((time) => Date.parse(time.dateTime)))")
    assert oldest >= stopped
    seen.check_clean(unreachable=True)


def test_a_plot_has_a_hole_where_the_plane_was_not_heard(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there, "#/engine/e0").live()
    seen.until("return document.querySelector('.rank')?.hasAttribute('data-seen')")
    # The share of columns in which the plot has any colour, from the first to the last that has.
    filled = """
        const canvas = document.querySelectorAll(".rank canvas")[1];
        const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const columns = [...Array(width).keys()].filter((x) => [...Array(height).keys()].some((y) => data[4 * (y * width + x) + 3]));
        return columns.length > 10 && columns.length / (1 + columns.at(-1) - columns[0]);
    """
    seen.until(f"return (() => {{ {filled} }})() > 0.99", what="a whole plot")
    seen.hide()
    seen.shows("paused", "#link")
    age = "parseInt(document.querySelector('.axis').innerText)"
    before = seen.run(f"return {age}")
    seen.until(f"return {age} >= arguments[0]", min(before + 6, 50), what="time that passes")
    seen.hide(False)
    seen.live()
    seen.until(f"const share = (() => {{ {filled} }})(); return share && share < 0.99", what="a hole")


def watchers(plane):
    (line,) = [line for line in plane.get("/metrics")[1].splitlines() if line.startswith("kvplane_watchers ")]
    return float(line.split()[1])


def test_a_page_that_nobody_sees_lets_go_of_its_connection(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there).live()
    assert watchers(there.plane) == 1
    seen.hide()
    eventually(lambda: watchers(there.plane) == 0, "nobody looks", 30.0)
    assert seen.find("#banner").is_displayed() is False
    seen.hide(False)
    seen.live()
    assert watchers(there.plane) == 1
    seen.check_clean()


def test_a_name_that_is_not_this_machine_s_is_refused_without_asking_for_a_token(fleet, chromium):
    there = fleet("vllm-0.32")
    seen = Page(chromium, f"http://{FOREIGN}:{there.port}").open()
    seen.shows("write localhost or 127.0.0.1 in the URL", "#banner")
    assert not seen.find("#token-form").is_displayed()


def test_a_browser_that_keeps_nothing_shows_the_page(fleet, page, chromium):
    refuse = "for (const area of ['localStorage', 'sessionStorage']) Object.defineProperty(window, area, {get() { throw new DOMException('no', 'SecurityError'); }})"
    script = chromium.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": refuse})
    try:
        seen = page(fleet("vllm-0.32")).live()
        seen.cell("e0", standing="exact")
        before = seen.run("return document.documentElement.dataset.theme")
        seen.press("d")
        seen.until("return document.documentElement.dataset.theme !== arguments[0]", before)
        seen.check_clean()
    finally:
        chromium.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@pytest.fixture
def guarded(fleet, tmp_path):
    """A fleet whose plane asks who calls."""
    for role in ("read", "report"):
        (tmp_path / f"{role}.token").write_text(f"{role}-token-of-a-browser\n")
        (tmp_path / f"{role}.token").chmod(0o600)
    tokens = [f'[[auth.token]]\nname = "{role}"\nrole = "{role}"\nfile = "{tmp_path}/{role}.token"\n' for role in ("read", "report")]
    (tmp_path / "kvplane.toml").write_text("".join(tokens))
    return fleet("vllm-0.32", words=["--config", tmp_path / "kvplane.toml"])


def test_a_plane_with_roles_asks_for_a_token(guarded, page):
    seen = page(guarded)

    def give(token):
        seen.until("return !document.getElementById('token-form').hidden")
        seen.find("#token").send_keys(token)
        seen.find("#token-form button").click()

    seen.shows("a bearer token or a client certificate with a role is required", "#token-form")
    give("a\u2019token")
    seen.shows("a request cannot carry", "#token-form")
    assert seen.run("return sessionStorage.length") == 0
    give("nobody-s-token")
    seen.shows("unknown token; compare it with", "#token-form")
    give("report-token-of-a-browser")
    seen.shows("this needs the role read", "#token-form")
    give("read-token-of-a-browser")
    seen.live()
    seen.cell("e0", standing="exact")
    assert not seen.find("#token-form").is_displayed()
    assert seen.find("#token").get_attribute("value") == ""
    # It is for this tab, and in no address.
    seen.open("#/ask").live()
    seen.ask("1 2 3 4")
    seen.shows("Trust of the answer", "#ask-answer")
    assert "token-of-a-browser" not in "".join(seen.requests())
    assert seen.run("return JSON.stringify(localStorage)").find("token-of") == -1
