"""Running planes and simulated engines for tests of the client: the processes of tests/interop."""

from contextlib import contextmanager

from harness.plane import Plane, Sim, free_ports, http
from harness.wait import eventually

__all__ = ["BLOCK", "MODEL", "Fleet", "eventually", "fleet", "http", "prompt"]

BLOCK = 8
MODEL = "m"


def prompt(seed, blocks):
    """Whole blocks, and one token more: an engine computes the last one in any case."""
    return [seed * 1_000 + at for at in range(blocks * BLOCK + 1)]


class Fleet:
    """A plane over simulated engines, `e0` and so on. Both can be restarted where they were."""

    def __init__(self, binary, engines):
        self.binary = binary
        self.sims = [Sim(binary, "--blocks", 400, "--block-size", BLOCK, "--seed", at + 1) for at in range(engines)]
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.planes = []
        self.start_plane()

    def start_plane(self):
        self.plane = Plane(self.binary, *self.flags(), grpc=self.address)
        self.planes.append(self.plane)

    def flags(self):
        for at, sim in enumerate(self.sims):
            yield "--engine"
            yield f"vllm={sim.events[0]},replay={sim.replay[0]},id=e{at},model={MODEL}"

    def stop_plane(self):
        assert self.plane.stop() == 0

    def settle(self):
        """Waits until the plane has everything that the engines have published."""
        for at, sim in enumerate(self.sims):
            _, following = sim.state()
            if following:
                self.plane.wait_at(following - 1, f"e{at}")
            else:
                self.plane.wait_live(f"e{at}")

    def ask(self, **question):
        """What the plane itself answers."""
        status, answer = http("POST", f"{self.plane.http}/v1/query", {"model": MODEL, **question})
        assert status == 200, answer
        return answer

    def close(self):
        for process in [*self.planes, *self.sims]:
            process.close()


@contextmanager
def fleet(binary, engines=2):
    """A fleet that ends with the block."""
    started = Fleet(binary, engines)
    try:
        yield started
    finally:
        started.close()
