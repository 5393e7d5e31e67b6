"""A wire between two interfaces of this network namespace: copies frames, and loses or delays them when asked to.

Run as `python wire_between.py LEFT RIGHT`. Commands come as lines on standard input, each is answered with `ok`:

    cut                        nothing passes, and nobody is told
    heal                       everything passes, at once
    impair LOSS DELAY JITTER   a share of all frames is lost, the others take DELAY +- JITTER seconds, in order

It stands in for `tc netem`, which not every kernel has, and needs nothing but raw sockets.
"""

import heapq
import random
import select
import socket
import sys
import time

OUTGOING = 4  # PACKET_OUTGOING: our own frames, seen once more
ALL_PROTOCOLS = 3  # ETH_P_ALL


class Wire:
    def __init__(self, left, right):
        self.ends = [self._open(left), self._open(right)]
        self.cut, self.loss, self.delay, self.jitter = False, 0.0, 0.0, 0.0
        self.waiting, self.number = [], 0
        self.last = [0.0, 0.0]  # when the last frame towards each end leaves: they keep their order

    @staticmethod
    def _open(name):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        end.bind((name, 0))
        end.setblocking(False)
        return end

    def obey(self, words):
        if words[0] == "cut":
            self.cut, self.waiting = True, []
        elif words[0] == "heal":
            self.cut, self.loss, self.delay, self.jitter = False, 0.0, 0.0, 0.0
        elif words[0] == "impair":
            self.cut = False
            self.loss, self.delay, self.jitter = map(float, words[1:])
        else:
            raise SystemExit(f"no such command: {words}")
        print("ok", flush=True)

    def take(self, side):
        """Reads what has arrived at one end, and lets it go on its way."""
        while True:
            try:
                frame, address = self.ends[side].recvfrom(65_536)
            except BlockingIOError:
                return
            except OSError:
                return  # the interface is down: what comes through it is lost
            if address[2] == OUTGOING or self.cut or random.random() < self.loss:
                continue
            if not self.delay and not self.waiting:
                self.send(1 - side, frame)
                continue
            due = time.monotonic() + self.delay + random.uniform(-self.jitter, self.jitter)
            due = self.last[1 - side] = max(due, self.last[1 - side])
            self.number += 1
            heapq.heappush(self.waiting, (due, self.number, 1 - side, frame))

    def send(self, side, frame):
        try:
            self.ends[side].send(frame)
        except OSError:
            pass  # the interface is down, or its queue is full: the frame is lost

    def run(self):
        while True:
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, side, frame = heapq.heappop(self.waiting)
                self.send(side, frame)
            patience = self.waiting[0][0] - now if self.waiting else None
            ready, _, _ = select.select([*self.ends, sys.stdin], [], [], patience)
            for side, end in enumerate(self.ends):
                if end in ready:
                    self.take(side)
            if sys.stdin in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self.obey(line.split())


if __name__ == "__main__":
    wire = Wire(*sys.argv[1:])
    print("ok", flush=True)
    wire.run()
