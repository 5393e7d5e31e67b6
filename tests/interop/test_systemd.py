"""Under a service manager: a datagram socket stands in for systemd."""

import signal
import socket
import time

import pytest

from harness.plane import clean_environment, http

CONFIG = '[[engine]]\nid = "a"\nkind = "vllm"\nevents = "tcp://127.0.0.1:1"\n'


class Manager:
    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(30)
        self.socket.bind(address)
        self.name = self.socket.getsockname()
        self.name = f"@{self.name[1:].decode()}" if isinstance(self.name, bytes) else self.name

    def told(self):
        """The next message but signs of life, as a dictionary."""
        while True:
            message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))
            if message != {"WATCHDOG": "1"}:
                return message

    def sees_life(self):
        while self.socket.recv(4096) != b"WATCHDOG=1":
            pass


def micros():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@pytest.fixture(params=["abstract", "path"])
def manager(request, tmp_path):
    # Linux chooses the name of a socket that is bound to none.
    manager = Manager("" if request.param == "abstract" else str(tmp_path / "notify"))
    yield manager
    manager.socket.close()


def test_a_life_under_a_manager(plane, manager, tmp_path):
    config = tmp_path / "kvplane.toml"
    config.write_text(CONFIG)
    environment = clean_environment(NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="100000")
    served = plane(args=["--config", config], env=environment)
    ready = manager.told()
    assert ready["READY"] == "1"
    assert "engines: 1, streams: 1" in ready["STATUS"] and served.grpc in ready["STATUS"]
    # Ready is: whoever comes now is served.
    assert http("GET", f"{served.http}/healthz") == (200, "ok\n")
    for _ in range(3):
        manager.sees_life()

    config.write_text(CONFIG + CONFIG.replace('"a"', '"b"'))
    asked = micros()
    served.process.send_signal(signal.SIGHUP)
    reloading = manager.told()
    assert reloading["RELOADING"] == "1"
    # By this time systemd takes it for the answer to its own signal.
    assert asked <= int(reloading["MONOTONIC_USEC"]) <= micros()
    ready = manager.told()
    assert ready["READY"] == "1" and "engines: 2" in ready["STATUS"]

    config.write_text("nonsense")
    served.process.send_signal(signal.SIGHUP)
    assert manager.told()["RELOADING"] == "1"
    ready = manager.told()
    assert ready["READY"] == "1" and "not reloaded" in ready["STATUS"] and "engines: 2" in ready["STATUS"]
    manager.sees_life()

    assert served.stop() == 0
    assert manager.told()["STOPPING"] == "1"


def test_nobody_else_shows_life_for_the_watched_process(plane, manager):
    served = plane(env=clean_environment(NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="1000", WATCHDOG_PID="1"))
    assert manager.told()["READY"] == "1"
    served.stop()
    assert b"STOPPING=1" in manager.socket.recv(4096)


def test_a_manager_that_cannot_be_told_is_a_warning(plane):
    served = plane(env=clean_environment(NOTIFY_SOCKET="vsock:2:1234"))
    (warning,) = served.logged("service manager cannot be notified")
    assert "NOTIFY_SOCKET" in warning["error"]
    assert served.stop() == 0
