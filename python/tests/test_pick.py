"""`Client.pick`: decisions of a real plane over simulated engines, bookings and their accounts."""

import asyncio

import pytest
from planes import BLOCK, MODEL, fleet, http, prompt

import kvplane


@pytest.fixture(scope="module")
def steady(binary):
    with fleet(binary, 2) as one:
        one.sims[0].complete(prompt(1, 12))
        one.sims[1].complete(prompt(2, 3))
        one.settle()
        yield one


@pytest.fixture
def client(steady):
    with kvplane.Client(steady.address) as client:
        assert client.wait_ready(15)
        yield client


def bookings(plane):
    _, page = http("GET", f"{plane.plane.http}/metrics")
    (line,) = [line for line in page.splitlines() if line.startswith("kvplane_route_bookings ")]
    return int(line.split()[1])


def test_the_holder_is_picked_and_the_account_is_right(client, steady):
    with client.pick(MODEL, prompt(1, 12), output_tokens=5) as booking:
        assert (booking.engine, booking.rank, booking.why) == ("e0", 0, "cached")
        assert booking.cached_tokens == 12 * BLOCK
        assert booking.picked["booked"] and bookings(steady) == 1
        booking.first_token()
        booking.first_token()
        account = booking.finish(cached_tokens=12 * BLOCK, prompt_tokens=12 * BLOCK + 1)
    assert account == booking.account
    assert account["settled"] and account["lost"] == {} and account["drift"] is None
    assert account["predicted_tokens"] == account["delivered_tokens"] == 12 * BLOCK
    assert booking.over and bookings(steady) == 0
    assert booking.finish() == account, "a second time changes nothing"


def test_a_block_that_raises_aborts(client, steady):
    with pytest.raises(RuntimeError), client.pick(MODEL, prompt(1, 12)) as booking:
        assert bookings(steady) == 1
        raise RuntimeError
    assert booking.over and booking.account is None
    status, receipt = http("GET", f"{steady.plane.http}/v1/receipts/{booking.id}")
    assert (status, receipt["state"]) == (200, "aborted")
    assert bookings(steady) == 0


def test_who_served_elsewhere_is_told_so(client):
    booking = client.pick(MODEL, prompt(1, 12), exclude=[("e1", 0)])
    assert booking.picked["skipped"] == [{"engine": "e1", "rank": 0, "why": "excluded"}]
    account = booking.finish(cached_tokens=0, engine="e1")
    assert account["lost"] == {"wrong_endpoint": 12 * BLOCK}


def test_a_dry_run_books_nothing_and_without_tokens_the_load_decides(client, steady):
    booking = client.pick(MODEL, prompt(1, 12), dry_run=True)
    assert booking.id is None and not booking.picked["booked"] and bookings(steady) == 0
    assert booking.finish(cached_tokens=1) is None
    with client.pick(MODEL) as blind:
        assert blind.why == "no_tokens"


def test_bad_input_is_named(client, steady):
    for details, word in [
        ({"policy": "fastest"}, "policy"),
        ({"limit": 65}, "limit"),
        ({"prompt": "text"}, "prompt"),
        ({"prompt": "text", "token_ids": None}, "tokenizer"),
    ]:
        ids = details.pop("token_ids", prompt(1, 1))
        with pytest.raises(kvplane.Error) as error:
            client.pick(MODEL, ids, **details)
        assert error.value.code == "invalid_argument" and word in str(error.value), str(error.value)
    with pytest.raises(kvplane.ArgumentTypeError):
        client.pick(MODEL, prompt(1, 1), exclude=["e0"])
    with pytest.raises(kvplane.ArgumentTypeError):
        client.pick(MODEL, prompt(1, 1), nonsense=1)
    with pytest.raises(kvplane.Error):
        client.pick("nobody", [1])
    assert bookings(steady) == 0


def test_asyncio(steady):
    async def run():
        async with kvplane.AsyncClient(steady.address) as client:
            assert await client.wait_ready(15)
            booking = await client.pick(MODEL, prompt(1, 12))
            assert booking.engine == "e0"
            booking.finish()

    asyncio.run(run())


def test_a_plane_that_is_gone_is_an_error_in_time(binary):
    with fleet(binary, 1) as one:
        one.settle()
        with kvplane.Client(one.address) as client:
            assert client.wait_ready(15)
            booking = client.pick(MODEL, [1])
            one.stop_plane()
            with pytest.raises(kvplane.Error) as error:
                client.pick(MODEL, [1], timeout=5.0)
            assert error.value.code == "unavailable"
            with pytest.raises(kvplane.Error):
                booking.finish(timeout=5.0)
