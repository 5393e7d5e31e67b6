"""A plane that goes and comes back, and one that does not let everybody in."""

import pytest


def test_a_page_recovers_when_the_plane_comes_back(fleet, page):
    there = fleet("vllm-0.32")
    seen = page(there).live()
    seen.cell("e0", standing="exact")
    first = seen.run("return document.querySelectorAll('#timeline li').length")
    assert first >= 2
    there.plane.stop()
    seen.shows("The plane is not heard", "#banner")
    seen.shows("not connected", "#link")
    there.start()
    seen.live()
    seen.until("return document.getElementById('banner').hidden")
    epoch = str(there.plane.wait_live("e0")["epoch"])
    seen.cell("e0", standing="exact", epoch=epoch)
    # Another run has another history.
    began = "return [...document.querySelectorAll('#timeline li')].filter((line) => line.innerText.includes('the plane began')).length"
    assert seen.run(began) == 1
    seen.check_clean(unreachable=True)


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

    seen.shows("a bearer token or a client certificate with a role is needed", "#token-form")
    give("nobody-s-token")
    seen.shows("the token is not known; compare it with", "#token-form")
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
    seen.shows("The answer is worth", "#ask-answer")
    assert "token-of-a-browser" not in "".join(seen.requests())
    assert seen.run("return JSON.stringify(localStorage)").find("token-of") == -1
