"""What somebody on call sees first: is the fleet healthy, which engines are not, and what to do."""

from contextlib import ExitStack

from harness.plane import free_ports, http
from measure import many
from page import Page

SICK = 2
IN_VIEW = """
    const names = arguments[0];
    return names.every((name) => {
        const cell = document.querySelector(`.cell[data-engine="${name}"]`);
        const at = cell && cell.getBoundingClientRect();
        return at && at.height > 0 && at.top >= 0 && at.bottom <= window.innerHeight;
    });
"""


def add_sick(plane, count):
    """Engines at addresses where nobody publishes."""
    names = []
    for port in free_ports(count):
        names.append(f"zz-an-engine-with-quite-a-long-name-{port}")
        status, body = http("POST", f"{plane.http}/v1/engines", {"id": names[-1], "kind": "vllm", "events": f"tcp://127.0.0.1:{port}", "model": "sim"})
        assert status in (200, 201), body
    return names


def test_two_sick_engines_among_fifty_are_seen_at_once(binary, chromium):
    with ExitStack() as stack:
        plane, ranks = many(stack, binary, 50 - SICK, 20)
        seen = Page(chromium, plane.http).open().live()
        seen.until("return document.querySelectorAll('.cell').length === arguments[0]", ranks)
        seen.until("return document.getElementById('health').dataset.level === 'good'", what="healthy")
        assert not seen.run("return document.title.startsWith('✗')")
        names = add_sick(plane, SICK)
        seen.until("return document.getElementById('health').dataset.level === 'bad'", what="a red banner")
        seen.shows(f"{SICK} ranks of {ranks + SICK} need attention", "#health")
        seen.until(IN_VIEW, names, what="both in view without scrolling")
        seen.until("return document.title.startsWith('✗ 2')", what="the alarm in the title")
        # Long names keep their ends, which tell them apart.
        assert seen.run("return document.querySelector(`.cell[data-engine=\"${arguments[0]}\"]`).closest('.engine').querySelector('.tail').textContent", names[0]) == names[0][-8:]
        # The remedy stands beside the problem.
        seen.until("return document.querySelector('#open-problems li[data-severity=error] .todo')", what="a remedy")
        for name in names:
            seen.shows(name, "#open-problems")
        # The connection of the page is another matter.
        assert seen.run("return document.getElementById('link').dataset.state") == "live"
        seen.find("#health-links a").click()
        shown = "return [...document.querySelectorAll('.engine:not([hidden])')].map((card) => card.querySelector('.cell').dataset.engine).sort().join()"
        seen.until(f"{shown} === arguments[0]", ",".join(sorted(names)), what="the sick alone")
        seen.find("#show").click()
        seen.until("return document.querySelectorAll('.engine:not([hidden])').length === 50", what="all again")
        # What a dead engine held is not in the totals, and one incident is one line.
        seen.until("return document.querySelectorAll('#timeline li[data-mood=bad]').length === 1", what="one incident")
        seen.shows("2 ranks", "#timeline li[data-mood=bad]")
        for name in names:
            http("DELETE", f"{plane.http}/v1/engines/{name}")
        seen.until("return document.getElementById('health').dataset.level === 'good'", what="healthy again")
        seen.check_clean()


def test_the_first_thing_seen_is_what_kvplane_is_worth(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there).live()
    seen.cell("e0", standing="exact")
    seen.shows("no questions yet", "[data-tile=hit-rate]")
    tokens = list(range(64))
    http("POST", f"{there.plane.http}/v1/query", {"model": there.plane.get("/v1/engines")[1]["engines"][0]["model"], "token_ids": tokens})
    seen.shows("1 question", "[data-tile=asked]")
    seen.until("return /^[\\d.]+ %$/.test(document.querySelector('[data-tile=fullness] b').textContent)", what="fullness")
    seen.until("return document.querySelector('[data-tile=copies] b').textContent.startsWith('×')", what="copies of a block")
    tiles = seen.run("return document.getElementById('value').getBoundingClientRect().bottom")
    assert tiles < 300, tiles
    seen.check_clean()


def test_plots_begin_before_the_page_was_opened(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there).live()
    seen.cell("e0", standing="exact")
    seen.until("return fetch('v1/history?engine=e0').then((response) => response.json()).then((past) => past.ranks[0]?.samples.length >= 1 && past.fleet.length >= 1)")
    status, past = http("GET", f"{there.plane.http}/v1/history?engine=e0")
    assert status == 200 and past["fleet"][0]["streams"] >= 0
    status, refused = http("GET", f"{there.plane.http}/v1/history?engin=e0")
    assert status == 400, refused


def test_a_plane_without_engines_says_how_to_add_one(fleet, page):
    seen = page(fleet()).live()
    seen.shows("kvplane engines add", "#fleet-empty")
    seen.shows("--kv-events-config", "#fleet-empty")
    seen.check_clean()


def test_an_incident_that_healed_is_folded(fleet, page):
    there = fleet("vllm-0.32", "vllm-0.32", load=5)
    seen = page(there).live()
    seen.cell("e0", standing="exact")
    there.sims[0].fault(lose=1)
    seen.cell("e0", standing="lower")
    there.sims[0].fault(restart={"first_sequence": 40, "same_content": False})
    seen.cell("e0", standing="exact")
    seen.until("return document.querySelector('#timeline li[data-healed] details:not([open])')", what="a folded incident")
    seen.find("#problems").click()
    seen.until("return document.querySelectorAll('#timeline li[data-healed]').length === 0", what="no healed incident among open problems")
