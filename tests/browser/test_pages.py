"""The other pages, and what every page has to be: dark, narrow, reached by keys."""

from urllib.parse import quote

from selenium.webdriver.common.keys import Keys

from harness.plane import http

PROMPT = list(range(100, 197))
# What somebody may call an engine.
ODD = ("a/b", "<b>ünï</b>引擎", "x" * 300)


def test_a_question_is_drawn_along_the_prompt(fleet, page):
    there = fleet("vllm-0.32", "vllm-0.32", load=0)
    one, two = there.sims
    one.complete(PROMPT, 1)
    two.complete(PROMPT[:48] + [7] * 40, 1)
    for at, sim in enumerate(there.sims):
        there.plane.wait_at(sim.state()[1] - 1, f"e{at}")
    seen = page(there, "#/ask").live()
    for text in (str(PROMPT), ", ".join(map(str, PROMPT)), " ".join(map(str, PROMPT))):
        seen.run("document.getElementById('ask-answer').replaceChildren()")
        seen.ask(text)
        drawn = seen.until("""
            const holders = [...document.querySelectorAll(".holder")];
            return holders.length && holders.map((holder) => [
                holder.dataset.holder, holder.querySelector(".best") !== null,
                holder.querySelector("i").getBoundingClientRect().width / holder.querySelector(".bar").getBoundingClientRect().width]);
        """)
        assert [(name, best) for name, best, _ in drawn] == [("e0/0", True), ("e1/0", False)], drawn
        assert [round(width * len(PROMPT)) for *_, width in drawn] == [96, 48], drawn
        seen.shows("2 of 2 ranks hold a part of these 97 tokens", "#ask-answer")
        seen.shows("exact", "#ask-answer")
    seen.find("#ask summary").click()
    seen.find("#ask-salt").send_keys("another tenant")
    seen.ask(str(PROMPT))
    seen.shows("0 of 2 ranks hold a part", "#ask-answer")
    for text, words in (("", "No token ids"), ("1, 2, x3", 'Number 3 is "x3"'), ("1 -2", 'Number 2 is "-2"'), ("4294967296", "whole number")):
        seen.run("document.getElementById('ask').noValidate = true")
        seen.ask(text)
        seen.shows(words, "#ask-error")
    seen.check_clean()


def test_an_engine_without_a_model_can_be_asked_for(fleet, page):
    there = fleet("vllm-0.32", load=0, model=None)
    there.sims[0].complete(PROMPT, 1)
    there.plane.wait_at(there.sims[0].state()[1] - 1, "e0")
    seen = page(there, "#/ask").live()
    seen.shows("(no model)", "#ask-model")
    seen.ask(str(PROMPT))
    seen.shows("1 of 1 ranks hold a part", "#ask-answer")
    seen.go("#/engine/e0")
    seen.shows("vllm, no model, 1 rank", "#engine-facts")
    seen.check_clean()


def test_an_engine_has_plots_that_move(fleet, page):
    there = fleet("vllm-0.32", ranks=2)
    seen = page(there, "#/engine/e0").live()
    seen.shows("vllm, model sim, 2 ranks", "#engine-facts")
    for rank in (0, 1):
        card = f'.rank[data-rank="{rank}"]'
        seen.shows("live, exact", card)
        for plot in (0, 1):
            drawn = "return document.querySelector(arguments[0]).querySelectorAll('canvas')[arguments[1]].toDataURL()"
            before = seen.run(drawn, card, plot)
            seen.until(f"{drawn} !== arguments[2]", card, plot, before, what="a plot that moves")
    assert seen.driver.title == "e0 · kvplane"
    seen.go("#/engine/nobody")
    seen.shows("No such engine.", "#engine-facts")
    seen.go("#/engine/100%")
    seen.shows("100%", "#engine-name")
    seen.check_clean()


def test_light_and_dark(fleet, page):
    seen = page(fleet("vllm-0.32")).live()
    paper = "const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return r + g + b"
    assert seen.run(paper) > 600
    seen.media(prefers_color_scheme="dark")
    seen.until(f"return (() => {{ {paper} }})() < 150", what="dark, as the system wants it")
    seen.press("d")
    seen.until(f"return (() => {{ {paper} }})() > 600", what="light, as the reader wants it")
    seen.open().live()
    assert seen.run(paper) > 600, "it is remembered"
    seen.find("#theme").click()
    seen.until(f"return (() => {{ {paper} }})() < 150")
    seen.check_clean()


def test_narrow_screens_have_no_overflow(fleet, page):
    there = fleet(*["vllm-0.32"] * len(ODD), ranks=2, load=0, names=ODD)
    for sim in there.sims:
        sim.complete(PROMPT, 1)
    seen = page(there).live()
    for name in ODD:
        seen.cell(name, standing="exact")
    seen.go("#/ask")
    seen.until("return !document.getElementById('page-ask').hidden")
    seen.ask(str(PROMPT))
    seen.until("return document.querySelectorAll('.holder').length === 3")
    assert not seen.run("return [...document.querySelectorAll('b')].some((bold) => bold.textContent.includes('ünï'))"), "a name is text"
    for width in (360, 768):
        seen.size(width, 740)
        for fragment in ("#/", "#/ask", *(f"#/engine/{quote(name, safe='')}" for name in ODD)):
            seen.go(fragment)
            seen.until("return !document.querySelector(`section[data-page=${arguments[0]}]`).hidden", fragment.split("/")[1] or "fleet")
            wide = seen.run("""
                const beyond = (element) => element.getBoundingClientRect().right > innerWidth + 1 && element.offsetParent;
                const wide = [...document.querySelectorAll("main *, header *")].filter(beyond).map((element) => element.outerHTML.slice(0, 80));
                return document.documentElement.scrollWidth > innerWidth ? ["the page", ...wide] : wide;
            """)
            assert not wide, (width, fragment, wide)
    seen.check_clean()


def focused(seen):
    return seen.run("const at = document.activeElement; return at.id || at.dataset.page || at.dataset.engine || at.className || at.tagName")


def test_everything_is_reached_by_keys(fleet, page):
    seen = page(fleet("vllm-0.32", "vllm-0.32", ranks=2)).live()
    seen.cell("e1", 1, standing="exact")
    reached = []
    # Not beyond the page: from the browser's own controls a cell is not focused as by keys.
    while len(reached) < 20 and "timeline" not in reached:
        seen.tab()
        reached.append(focused(seen))
    wanted = ["skip", "name", "fleet", "ask", "theme", "filter", "e0", "timeline"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted, reached
    outline = seen.run("document.querySelector('.cell').focus(); return getComputedStyle(document.querySelector('.cell')).outlineStyle")
    assert outline != "none"
    where = "return [document.activeElement.dataset.engine, document.activeElement.dataset.rank].join('/')"
    visited = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.END, Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_UP):
        seen.press(key)
        visited.append(seen.run(where))
    assert visited == ["e0/1", "e1/0", "e0/1", "e1/1", "e0/0", "e0/1", "e0/0"], visited
    seen.press(Keys.END, Keys.ENTER)
    seen.until("return location.hash === '#/engine/e1'")
    seen.press("a")
    seen.until("return location.hash === '#/ask' && !document.getElementById('page-ask').hidden")
    seen.press("/")
    seen.until("return document.activeElement.id === 'filter'")
    # What is found is reached, whichever cell was visited last.
    seen.press("e0")
    seen.until("return document.querySelectorAll('.engine:not([hidden])').length === 1")
    seen.tab()
    assert focused(seen) == "sort"
    seen.tab()
    assert focused(seen) == "e0"
    seen.open("#/engine/e0").live()
    seen.tab()
    seen.press(Keys.ENTER)
    assert (focused(seen), seen.run("return location.hash")) == ("main", "#/engine/e0"), "skipping is not leaving"
    seen.check_clean()


def test_what_decisions_were_worth(fleet, page):
    there = fleet("vllm-0.32", "vllm-0.32", load=0)
    there.sims[0].complete(PROMPT, 1)
    there.plane.wait_at(there.sims[0].state()[1] - 1, "e0")
    seen = page(there, "#/routing").live()
    seen.shows("No decision was made yet", "#routing-live")
    pick = lambda: http("POST", there.plane.http + "/v1/pick", {"model": "sim", "token_ids": PROMPT})[1]["id"]
    # One under way, and one that got what was predicted.
    pick()
    done = {"state": "finish", "cached_tokens": 96, "prompt_tokens": len(PROMPT)}
    assert http("POST", f"{there.plane.http}/v1/receipts/{pick()}", done)[0] == 200
    seen.shows("96 of 97", "#routing")
    seen.until("return document.querySelector('[data-tile=live] b').textContent === '1'")
    seen.shows("e0/0", "#routing-live")
    seen.check_clean()


def test_the_ledger_shows_where_tokens_went(fleet, page):
    there = fleet("vllm-0.32", "vllm-0.32", load=0)
    there.sims[0].complete(PROMPT, 1)
    there.plane.wait_at(there.sims[0].state()[1] - 1, "e0")
    there.plane.wait_live("e1")
    seen = page(there, "#/routing").live()
    seen.shows("Nobody has asked for a decision yet", "#ledger-empty")
    status, picked = http("POST", there.plane.http + "/v1/pick", {"model": "sim", "token_ids": PROMPT})
    assert status == 200, picked
    report = {"state": "finish", "cached_tokens": 0, "prompt_tokens": len(PROMPT), "engine": "e1"}
    assert http("POST", f"{there.plane.http}/v1/receipts/{picked['id']}", report)[0] == 200
    seen.shows(picked["id"], "#ledger-worst")
    seen.shows("wrong_endpoint", '#ledger-worst [data-receipt]')
    assert seen.until("""return document.querySelector('[data-cause="wrong_endpoint"] progress')?.value""") == 96
    seen.find("#ledger-worst a").click()
    seen.shows("Lost: 96 by wrong_endpoint (another engine served).", "#receipt")
    seen.check_clean()
    # The browser itself notes that there is none.
    seen.go("#/routing/00000000-1")
    seen.shows("no receipt", "#receipt")
