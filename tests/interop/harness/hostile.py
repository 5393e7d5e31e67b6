"""Clients that mean harm, one that means none beside them, and what both see."""

import json
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20


# --- HTTP/2 by hand ------------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path, **more):
    """Headers of a gRPC call, each as a literal that is not indexed."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    fields += [("content-type", "application/grpc"), ("te", "trailers"), *((k.replace("_", "-"), v) for k, v in more.items())]
    block = b""
    for name, value in fields:
        assert len(name) < 127 and len(value) < 127
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


class Http2:
    """One HTTP/2 connection that does what it is told, and nothing else: it reads only when asked to."""

    def __init__(self, address, window=65_535, timeout=5.0):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HI", 4, window)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
        self.next_stream, self.read = 1, b""
        self.windows = {0: 65_535}  # what the server lets us send, by stream
        self.first_window = 65_535
        self.ended = False

    def open(self, path, body=b"", end=True, **headers):
        """A call with its whole request in one segment; its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        self.windows[stream] = self.first_window - len(body)
        self.windows[0] -= len(body)
        flags = END_HEADERS if body or not end else END_HEADERS | END_STREAM
        data = frame(DATA, END_STREAM if end else 0, stream, body) if body else b""
        self.socket.sendall(frame(HEADERS, flags, stream, header_block(path, **headers)) + data)
        return stream

    def hear(self, patience=0.0):
        """Reads what has come: window updates count, settings and pings are answered. The frames, as (kind, flags, stream, payload)."""
        found = []
        self.socket.settimeout(patience or 0.001)
        try:
            data = self.socket.recv(1 << 16)
            self.socket.settimeout(0)
            while data:
                self.read += data
                data = self.socket.recv(1 << 16)
            self.ended = True
        except (TimeoutError, BlockingIOError):
            pass
        except OSError:
            self.ended = True
        self.socket.settimeout(5.0)
        while len(self.read) >= 9:
            length = int.from_bytes(self.read[:3], "big")
            if len(self.read) < 9 + length:
                break
            kind, flags = self.read[3], self.read[4]
            stream = int.from_bytes(self.read[5:9], "big") & 0x7FFF_FFFF
            payload, self.read = self.read[9 : 9 + length], self.read[9 + length :]
            self._count(kind, flags, stream, payload)
            found.append((kind, flags, stream, payload))
        return found

    def _count(self, kind, flags, stream, payload):
        if kind == WINDOW_UPDATE:
            self.windows[stream] = self.windows.get(stream, 0) + (int.from_bytes(payload, "big") & 0x7FFF_FFFF)
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:
                    for one in self.windows:
                        self.windows[one] += value - self.first_window if one else 0
                    self.first_window = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.ended = True

    def pour(self, stream, data, seconds):
        """Sends as much of it as the server lets us within a time; how much that was."""
        end, sent = time.monotonic() + seconds, 0
        while sent < len(data) and time.monotonic() < end and not self.ended:
            room = min(self.windows[0], self.windows.get(stream, 0), len(data) - sent, 16_384)
            if room <= 0:
                self.hear(0.02)
                continue
            try:
                self.socket.sendall(frame(DATA, 0, stream, data[sent : sent + room]))
            except OSError:
                break
            self.windows[0] -= room
            self.windows[stream] -= room
            sent += room
        return sent

    def close(self):
        self.socket.close()


def grpc_message(payload):
    return b"\0" + struct.pack(">I", len(payload)) + payload


# --- the good client -----------------------------------------------------------------------------------------------

def rss(pid):
    """Resident memory in MiB; 0 when there is no such process."""
    try:
        with open(f"/proc/{pid}/status") as file:
            line = next(line for line in file if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        return 0.0


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else float("nan")


def p50(values):
    return percentile(values, 50)


def p99(values):
    return percentile(values, 99)


class Good:
    """A good client in a process of its own, so that it does not wait for an attacker in this one: see `good_client`."""

    def __init__(self, ask, pid):
        words = [sys.executable, "-m", "harness.good_client", json.dumps({**ask, "pid": pid})]
        folder = Path(__file__).resolve().parents[1]
        self.process = subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "asking\n"
        self.latencies, self.failures, self.peak = [], [], 0.0

    def stop(self):
        found = json.loads(self.process.communicate(timeout=60)[0])
        self.latencies, self.failures, self.peak = found["latencies"], found["failures"], found["peak"]
        return self


# --- the table -----------------------------------------------------------------------------------------------------

ROWS = []


def row(attack, before, during, memory_before, attacker):
    ROWS.append({
        "attack": attack,
        "p50_before_ms": round(p50(before.latencies) * 1000, 1),
        "p50_during_ms": round(p50(during.latencies) * 1000, 1),
        "p99_before_ms": round(p99(before.latencies) * 1000, 1),
        "p99_during_ms": round(p99(during.latencies) * 1000, 1),
        "longest_ms": round(max(during.latencies, default=0.0) * 1000, 1),
        "questions": len(during.latencies),
        "failures": len(during.failures),
        "rss_before_mib": round(memory_before),
        "rss_peak_mib": round(during.peak),
        "attacker": attacker,
    })
    return ROWS[-1]


def table():
    """What was measured, as lines for people and as one of JSON."""
    lines = [f"{'attack':<46} {'p50 before':>11} {'during':>10} {'p99 before':>11} {'during':>10} {'longest':>10} {'questions':>9} {'failed':>6} {'RSS before':>10} {'peak':>6}  what the attacker saw"]
    for one in ROWS:
        lines.append(
            f"{one['attack']:<46} {one['p50_before_ms']:>8} ms {one['p50_during_ms']:>7} ms {one['p99_before_ms']:>8} ms {one['p99_during_ms']:>7} ms {one['longest_ms']:>7} ms {one['questions']:>9} {one['failures']:>6}"
            f" {one['rss_before_mib']:>6} MiB {one['rss_peak_mib']:>6}  {one['attacker']}"
        )
    return [*lines, json.dumps(ROWS)]


def question(plane, prompt, model):
    """Asks for a prompt over one connection, which stays, and now and then for the status of all streams."""
    return {"kind": "query", "address": plane.http.removeprefix("http://"), "model": model, "prompt": prompt}


def new_connection(address, ca=None):
    """Comes anew to the HTTP listener for every question."""
    return {"kind": "page", "url": f"{'https' if ca else 'http'}://{address}/healthz", "ca": ca and str(ca)}


def health(address):
    """Comes anew to a gRPC listener for every question."""
    return {"kind": "health", "address": address}
