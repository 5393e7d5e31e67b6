"""Waiting on conditions, never on time."""

import time

# Far beyond what anything takes on a busy machine: only what never happens reaches it.
DEADLINE = 60.0


def eventually(look, what, deadline=DEADLINE):
    """Calls `look` until it returns something true, and returns that."""
    end = time.monotonic() + deadline
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            said = what() if callable(what) else what
            raise AssertionError(f"not within {deadline} s: {said}")
        time.sleep(0.01)
