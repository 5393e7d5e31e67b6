"""The endpoint picker killed, hung, restarted and drained under load, behind a real Envoy."""

import http.client
import signal
import threading

import pytest

from harness.echo import Echo
from harness.envoy import Envoy, PickerPlane, chat, fetch, find_envoy
from harness.plane import free_ports
from harness.wait import eventually


CUT_OFF = "cut off"


@pytest.fixture
def echoes():
    made = [Echo(), Echo()]
    yield made
    for echo in made:
        echo.close()


@pytest.fixture
def planes(binary):
    find_envoy()
    made = []

    def make(echoes, more=""):
        # A restart comes back to the same port.
        listen = f'[picker]\nlisten = "127.0.0.1:{free_ports(1)[0]}"\n{more}'
        text = listen + "".join(f'[[picker.endpoint]]\naddress = "{echo.address}"\n' for echo in echoes)
        made.append(PickerPlane(binary, text))
        return made[-1]

    yield make
    for plane in made:
        plane.close()


@pytest.fixture
def envoys():
    made = []

    def make(bootstrap):
        made.append(Envoy(find_envoy(), bootstrap))
        made[-1].wait_healthy()
        return made[-1]

    yield make
    for envoy in made:
        envoy.close()


class Load:
    """Chats without a pause, from some threads, until it is told to stop."""

    def __init__(self, address, threads=4):
        self.address, self.statuses, self.stopping = address, [], threading.Event()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stopping.is_set():
            try:
                self.statuses.append(chat(self.address)[0])
            except (OSError, ValueError, http.client.HTTPException):
                # Its answer was on its way through the picker.
                self.statuses.append(CUT_OFF)

    def more(self, count):
        """Waits until so many more have come back."""
        wanted = len(self.statuses) + count
        eventually(lambda: len(self.statuses) >= wanted, "more answers", 60)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"
        return self.statuses


def test_killed_requests_go_on_in_turn_and_are_picked_again_after_a_restart(planes, envoys, echoes):
    plane = planes(echoes)
    envoy = envoys(plane.bootstrap())
    at = envoy.address["inference"]
    load = Load(at)
    load.more(20)
    plane.process.kill()
    plane.process.wait()
    envoy.wait_healthy(False)
    # A POST with a body, while the picker is gone.
    assert [chat(at)[0] for _ in range(10)] == [200] * 10
    load.more(20)
    plane.start()
    envoy.wait_healthy()
    eventually(lambda: plane.metric("kvplane_picker_requests_total") > 10, "picks after the restart", 60)
    statuses = load.stop()
    # Those that were under way when it was killed, and those until the health check saw it.
    assert set(statuses) <= {200, 500, 503, 504, CUT_OFF}, set(statuses)
    assert [chat(at)[0] for _ in range(10)] == [200] * 10


def test_hung_requests_go_on_in_turn_and_those_under_way_end_when_it_wakes(planes, envoys, echoes):
    plane = planes(echoes)
    envoy = envoys(plane.bootstrap())
    at = envoy.address["inference"]
    load = Load(at)
    load.more(20)
    plane.process.send_signal(signal.SIGSTOP)
    try:
        envoy.wait_healthy(False)
        assert chat(at)[0] == 200
    finally:
        plane.process.send_signal(signal.SIGCONT)
    envoy.wait_healthy()
    statuses = load.stop()
    assert set(statuses) <= {200, 500, 503, 504, CUT_OFF}, set(statuses)
    eventually(lambda: plane.metric("kvplane_picker_streams") == 0, "every stream is over")
    assert plane.metric("kvplane_route_bookings") == 0


def test_without_a_health_check_nothing_hangs_either(planes, envoys, echoes):
    """Whether a POST passes is Envoy's to choose then; but there is an answer, and picks go on when the picker is back."""
    plane = planes(echoes)
    bootstrap = plane.bootstrap()
    (cluster,) = [one for one in bootstrap["static_resources"]["clusters"] if one["name"] == "picker"]
    del cluster["health_checks"]
    at = envoys(bootstrap).address["inference"]
    assert chat(at)[0] == 200
    plane.process.kill()
    plane.process.wait()
    post = lambda: fetch(at, "POST", "/v1/chat/completions", '{"model":"m","messages":[]}', {"content-type": "application/json"})[0]
    assert fetch(at, "GET", "/v1/models")[0] == 200
    assert {post() for _ in range(10)} <= {200, 500, 503, 504}
    plane.start()
    eventually(lambda: post() == 200 and plane.metric("kvplane_picker_requests_total") > 0, "picks after the restart", 60)


def test_a_stop_under_load_loses_nothing(planes, envoys, echoes):
    plane = planes(echoes)
    envoy = envoys(plane.bootstrap())
    load = Load(envoy.address["inference"])
    load.more(20)
    plane.process.send_signal(signal.SIGTERM)
    # Requests are taken until Envoy has noticed.
    envoy.wait_healthy(False)
    assert plane.process.wait(timeout=60) == 0
    load.more(20)
    statuses = load.stop()
    assert set(statuses) == {200}, [status for status in statuses if status != 200]


def test_a_file_of_endpoints_is_followed(binary, envoys, echoes, tmp_path):
    find_envoy()
    file = tmp_path / "endpoints.yaml"

    def write(*chosen):
        lines = [f"- {{name: pod-{n}, address: 127.0.0.1, port: '{echo.address.rsplit(':')[1]}'}}" for n, echo in enumerate(chosen)]
        file.write_text("endpoints:\n" + "\n".join(lines) + "\n")

    write(*echoes)
    plane = PickerPlane(binary, f'[picker]\nlisten = "127.0.0.1:0"\nendpoints_file = "{file}"\n')
    try:
        at = envoys(plane.bootstrap()).address["inference"]
        served = lambda: {chat(at)[1]["served"] for _ in range(4)}
        assert served() == {echo.address for echo in echoes}
        write(echoes[1])
        eventually(lambda: plane.metric("kvplane_picker_endpoints") == 1, "the file is read again")
        assert served() == {echoes[1].address}
        file.write_text("nonsense: [")
        plane.logged("cannot read the endpoints; keeping the pool")
        assert served() == {echoes[1].address}
    finally:
        plane.close()
