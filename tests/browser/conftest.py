"""Fixtures: a browser, and a plane over simulated engines for it to look at."""

from contextlib import ExitStack

import pytest

from fleet import Fleet
from harness.plane import find_binary
from page import Page, start_chromium


@pytest.fixture(scope="session")
def binary():
    return find_binary()


@pytest.fixture(scope="session")
def chromium():
    driver = start_chromium()
    yield driver
    driver.quit()


@pytest.fixture
def fleet(binary):
    """Makes fleets that end with their test."""
    with ExitStack() as stack:
        yield lambda *profiles, **options: Fleet(binary, stack, *profiles, **options)


@pytest.fixture
def page(chromium):
    """Opens the dashboard of a fleet."""
    return lambda fleet, fragment="#/": Page(chromium, fleet.plane.http).open(fragment)
