"""Network namespaces of a test's own, links between them that can be cut without a word, and sockets inside them."""

import ctypes
import fcntl
import http.client
import json
import secrets
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

CLONE_NEWNET = 0x4000_0000
SIOCETHTOOL = 0x8946
# Offloads leave checksums and segmentation to hardware that there is not: ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO.
OFFLOADS = (0x17, 0x1F, 0x24)

_libc = ctypes.CDLL(None, use_errno=True)


def missing():
    """Why there can be no namespaces here; `None` where there can."""
    if not shutil.which("ip"):
        return "`ip` is missing: scripts/netns-env.sh installs iproute2 as root"
    name = f"kvp-{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    try:
        pair = ["ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two"]
        done = subprocess.run(pair, capture_output=True, text=True)
        if done.returncode:
            return f"no veth pair can be made here: {done.stderr.strip()}"
        run = subprocess.run(["ip", "netns", "exec", name, "true"], capture_output=True, text=True)
        if run.returncode:
            return f"nothing can be run in a network namespace here: {run.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Net:
    """Namespaces and links that end with their test."""

    def __init__(self):
        self.id = secrets.token_hex(3)
        self.spaces, self.links = [], []

    def space(self, name):
        made = Space(f"kvp-{self.id}-{name}")
        self.spaces.append(made)
        return made

    def link(self, left, right):
        made = Link(self, left, right, len(self.links) + 1)
        self.links.append(made)
        return made

    def close(self):
        for link in self.links:
            link.close()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space.name], check=False, capture_output=True)


class Space:
    """One namespace, with a loopback of its own."""

    def __init__(self, name):
        self.name = name
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")

    def words(self, binary, *words):
        """A command that runs `binary` inside, as the same process."""
        return ["ip", "netns", "exec", self.name, str(binary), *map(str, words)]

    def inside(self, make):
        """Calls `make` with this thread inside; sockets that it makes stay there."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            _enter(there)
            try:
                return make()
            finally:
                _enter(home)

    def connect(self, address, timeout):
        made = self.inside(lambda: socket.create_connection(address, timeout=timeout))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def set_link(self, interface, state):
        _ip("-n", self.name, "link", "set", interface, state)


def _enter(space):
    if _libc.setns(space.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Link:
    """Two namespaces that reach each other over a wire which we hold in our hand."""

    def __init__(self, net, left, right, number):
        self.left, self.right = left, right
        self.addresses = (f"10.77.{number}.1", f"10.77.{number}.2")
        middle = net.space(f"wire{number}")
        self.ends = [f"l{number}", f"r{number}"]
        for side, space in enumerate((left, right)):
            inner, outer = self.ends[side], f"m{side}"
            _ip("-n", middle.name, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space.name)
            _ip("-n", space.name, "address", "add", f"{self.addresses[side]}/24", "dev", inner)
            _ip("-n", space.name, "link", "set", inner, "up")
            _ip("-n", middle.name, "link", "set", outer, "up")
            space.inside(lambda inner=inner: _without_offloads(inner))
        script = Path(__file__).with_name("wire_between.py")
        self.wire = subprocess.Popen(
            middle.words(sys.executable, script, "m0", "m1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self._ok()

    def _ok(self):
        answer = self.wire.stdout.readline().strip()
        assert answer == "ok", f"the wire says {answer!r}"

    def _say(self, *words):
        self.wire.stdin.write(" ".join(map(str, words)) + "\n")
        self.wire.stdin.flush()
        self._ok()

    def cut(self):
        """Nothing passes from now on: no reset, no carrier that is lost, no word."""
        self._say("cut")

    def heal(self):
        for space, end in ((self.left, self.ends[0]), (self.right, self.ends[1])):
            subprocess.run(["tc", "-n", space.name, "qdisc", "del", "dev", end, "root"], check=False, capture_output=True)
        self._say("heal")

    def impair(self, loss, delay, jitter):
        """Loses a share of all packets in both directions and delays the others: with netem where the kernel has it."""
        netem = ["netem", "loss", f"{loss:.0%}", "delay", f"{delay * 1000:.0f}ms", f"{jitter * 1000:.0f}ms"]
        for space, end in ((self.left, self.ends[0]), (self.right, self.ends[1])):
            words = ["tc", "-n", space.name, "qdisc", "add", "dev", end, "root", *netem]
            if not shutil.which("tc") or subprocess.run(words, check=False, capture_output=True).returncode:
                self.heal()
                self._say("impair", loss, delay, jitter)
                return "raw sockets"
        return "tc netem"

    def close(self):
        self.wire.stdin.close()
        self.wire.wait(timeout=10)


def _without_offloads(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP8x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


class Caller:
    """An HTTP client whose connection lives in a namespace."""

    def __init__(self, space, port, timeout=10.0):
        self.space, self.address, self.timeout = space, ("127.0.0.1", port), timeout
        self.connection = None

    def call(self, method, path, body=None):
        """Status and decoded body; raises OSError when nobody answers."""
        data = None if body is None else json.dumps(body)
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(*self.address)
                self.connection.sock = self.space.connect(self.address, self.timeout)
                self.connection.auto_open = False
            self.connection.request(method, path, data, {"content-type": "application/json"})
            response = self.connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise OSError(str(error)) from error
        return response.status, json.loads(text)

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def port_of(address):
    """The port of a logged address."""
    return int(address.rsplit(":", 1)[1])


