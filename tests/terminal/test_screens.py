"""`kvplane status`, `kvplane top` and `kvplane demo` on terminals of two sizes."""

import re

# A colour of text or ground, unlike 39 and 49, which end one.
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:[34][0-8]|9[0-7]|10[0-7])[;m]")


def test_status_fits_one_screen(terminal, size, fleet, binary):
    seen = terminal(size, binary, "status", "--server", fleet.http)
    screen = seen.shows("need attention", "zz-sick", "engine-0", "engine-1", "Queries    1")
    assert seen.ended() == 0
    assert COLOUR.search(seen.screen(colours=True)), screen
    assert screen.splitlines()[0].startswith("Fleet"), screen
    # Trouble first, with its remedy.
    lines = screen.splitlines()
    row = {name: next(at for at, line in enumerate(lines) if line.startswith(name)) for name in ("zz-sick", "engine-0")}
    assert row["zz-sick"] < row["engine-0"], screen
    assert "do:" in screen, screen


def test_status_without_colours(terminal, size, fleet, binary):
    seen = terminal(size, binary, "status", "--server", fleet.http, env={"NO_COLOR": "1"})
    seen.shows("need attention")
    assert not COLOUR.search(seen.screen(colours=True))


def test_top_is_live_and_obeys_keys(terminal, size, fleet, binary):
    seen = terminal(size, binary, "top", "--server", fleet.http, "--interval", "500ms")
    seen.shows("1 of 3 streams need attention", "zz-sick", "q quit", "caches")
    lines = seen.lines()
    heading = next(at for at, line in enumerate(lines) if line.startswith("ENGINE"))
    assert lines[heading + 1].startswith("zz-sick"), lines
    assert ("RESTARTS" in lines[heading]) == (size[0] > 110), lines
    # A rate needs two looks.
    seen.press("s")
    seen.press("/")
    seen.shows("filter:")
    seen.press("-l", "engine-1")
    seen.press("Enter")
    seen.shows("filter: engine-1")
    assert "engine-0" not in seen.screen()
    seen.press("Escape")
    seen.shows("engine-0", "zz-sick")
    seen.resize(60, 12)
    seen.shows("q quit", "ENGINE")
    seen.press("q")
    assert seen.ended() == 0


def test_top_needs_a_kvplane(terminal, binary):
    seen = terminal((80, 24), binary, "top", "--server", "http://127.0.0.1:1")
    seen.shows("no kvplane answers")
    assert seen.ended() == 1


def test_the_demo_shows_three_fleets_and_ends_with_ten_lines(terminal, size, binary):
    seen = terminal(size, binary, "demo", "--seconds", "1")
    seen.shows("round robin", "plain event consumer", "kvplane", "phantom blocks", "q quit", deadline=120)
    seen.shows("tour", "completed", "cached, kvplane", "false hits", deadline=180)
    assert seen.ended() == 0
    summary = [line for line in seen.lines() if line.strip()]
    assert len(summary) <= 14, summary


def test_q_leaves_the_demo(terminal, binary):
    seen = terminal((80, 24), binary, "demo", "--seconds", "600", env={"NO_COLOR": "1"})
    seen.shows("round robin", "% cached", deadline=120)
    seen.resize(100, 30)
    seen.shows("round robin", "q quit")
    assert not COLOUR.search(seen.screen(colours=True))
    seen.press("q")
    seen.shows("not completed", deadline=120)
    assert seen.ended() == 0
