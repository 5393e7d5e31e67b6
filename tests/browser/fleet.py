"""A plane over simulated engines, for a browser to look at."""

from contextlib import closing

from harness.plane import Plane, Sim, free_ports


class Fleet:
    """A plane on a port of its own, over simulated engines e0, e1, … A profile may have further words for `kvplane sim` behind it."""

    def __init__(self, binary, stack, *profiles, load=20, ranks=1, words=(), names=None, model="sim"):
        self.binary, self.words = binary, list(words)
        self.stack = stack
        self.sims = []
        for at, profile in enumerate(profiles):
            speaks = ["--profile", *profile.split(), "--load", load, "--seed", at + 1]
            sim = stack.enter_context(closing(Sim(binary, *speaks, ranks=ranks)))
            self.sims.append(sim)
            name = names[at] if names else f"e{at}"
            where = f"{sim.software}={sim.events[0]},replay={sim.replay[0]},id={name},ranks={ranks},http={sim.http}" + (f",model={model}" if model else "")
            self.words += ["--engine", where]
        self.port = free_ports(1)[0]
        self.start()

    def start(self):
        """Starts the plane, again on the same port."""
        plane = Plane(self.binary, *self.words, http=f"127.0.0.1:{self.port}")
        self.plane = self.stack.enter_context(closing(plane))
        return self.plane
