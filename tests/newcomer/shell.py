"""One who types what a page says."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from harness.plane import free_ports
from page import Step

STAND_INS = Path(__file__).resolve().parent / "stand-ins"
# The ports that pages name, and that commands have as defaults.
PORTS = (5557, 5558, 8000, 8090, 50090)
# Events come on their way, and commands on another: a question may be early. Only questions are asked again.
ASKED_AGAIN = "kvplane query"
PATIENCE = 60


class Shell:
    """A shell in a directory, whose environment lasts, and terminals beside it. Ports of pages are free ones here."""

    def __init__(self, directory: Path, environment: dict[str, str], scratch: Path):
        self.directory = directory
        self.scratch = scratch
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        # There once somebody has waited for the engine.
        self.waited = scratch / "waited"
        ports = {f"NEWCOMER_PORT_{port}": str(free) for port, free in self.ports.items()}
        # Of one who has just logged in; a new terminal knows nothing of what another one exported.
        self.login = {**environment, **ports, "NEWCOMER_WAITED": str(self.waited)}
        self.environment = dict(self.login)
        self.terminals: list[tuple[subprocess.Popen, Path]] = []

    def here(self, text: str) -> str:
        return re.sub(r"\d+", lambda number: str(self.ports.get(int(number[0]), number[0])), text)

    def take(self, step: Step) -> None:
        """Does what the step says, and looks at what it shows."""
        if step.in_terminal:
            self.open_terminal(step.commands)
            return
        wanted = Step(step.commands, False, step.printed and self.here(step.printed))
        deadline = time.monotonic() + PATIENCE
        while True:
            output = self.run(step.commands)
            if wanted.is_as_printed(output):
                return
            again = ASKED_AGAIN in step.commands and time.monotonic() < deadline
            assert again, f"{step.commands}\nprinted\n{output}\nand not\n{wanted.printed}\n{self.heard()}"
            time.sleep(0.2)

    def run(self, commands: str) -> str:
        """Runs commands to their end, which must be a good one. What they export lasts."""
        kept = self.scratch / "environment"
        script = f"{self.here(commands)}\nenv -0 > '{kept}'"
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        )
        assert done.returncode == 0, f"{commands}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.heard()}"
        self.environment = dict(entry.split("=", 1) for entry in kept.read_text().split("\0") if entry)
        return done.stdout

    def open_terminal(self, commands: str) -> None:
        log = self.scratch / f"terminal-{len(self.terminals)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", self.here(commands)],
                cwd=self.directory, env=self.login, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )
        self.terminals.append((process, log))

    def terminal_says(self, words: str) -> bool:
        """Whether the last terminal comes to say these words."""
        deadline = time.monotonic() + PATIENCE
        _, log = self.terminals[-1]
        while words not in log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def heard(self) -> str:
        """What the terminals show."""
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')}" for _, log in self.terminals)

    def close(self) -> None:
        for process, _ in self.terminals:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment(scratch: Path, target: Path, built: Path | None) -> dict[str, str]:
    """That of somebody who has just logged in, but for where builds are kept, and what was built already."""
    dropped = ("MAKE", "MFLAGS", "KVPLANE", "CARGO_TARGET_DIR", "PYTEST", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    configured = scratch / "gitconfig"
    # The checkout may be somebody else's.
    configured.write_text("[safe]\n\tdirectory = *\n")
    return {
        **kept,
        "PATH": f"{STAND_INS}:{kept['PATH']}",
        "CARGO": str(STAND_INS / "cargo"),
        "NEWCOMER_CARGO": os.environ.get("NEWCOMER_CARGO", "cargo"),
        "NEWCOMER_BUILT": str(built or ""),
        "CARGO_TARGET_DIR": str(target),
        "GIT_CONFIG_GLOBAL": str(configured),
        "no_proxy": "127.0.0.1,localhost",
    }
