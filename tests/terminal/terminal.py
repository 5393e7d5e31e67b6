"""A command on a terminal of a given size, as somebody sees it: tmux without a client."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.wait import eventually


class Terminal:
    """One tmux server with one window. What it shows is read as text."""

    def __init__(self, width, height, *words, env=None):
        self._directory = tempfile.TemporaryDirectory(prefix="kvplane-terminal-")
        self._socket = Path(self._directory.name) / "tmux"
        self.status = Path(self._directory.name) / "status"
        command = " ".join(shlex.quote(str(word)) for word in words)
        # The window stays when the command has ended, so that its last words can be read.
        script = f"{command}; echo $? > {shlex.quote(str(self.status))}; exec sleep 1000"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KVPLANE", "TMUX", "NO_COLOR"))}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "sh", "-c", script, env={**inherited, **(env or {}), "LANG": "C.UTF-8"})

    def _tmux(self, *words, env=None):
        command = [shutil.which("tmux"), "-u", "-S", str(self._socket), *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def screen(self, colours=False):
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def lines(self):
        return self.screen().splitlines()

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def resize(self, width, height):
        self._tmux("resize-window", "-x", width, "-y", height)

    def shows(self, *words, deadline=60.0):
        """Waits until all of these are on the screen, and returns it."""
        return eventually(lambda: (lambda seen: seen if all(word in seen for word in words) else None)(self.screen()), lambda: f"{words}\n{self.screen()}", deadline)

    def ended(self, deadline=60.0):
        """Waits for the end of the command, and returns its exit code."""
        return int(eventually(lambda: self.status.exists() and self.status.read_text().strip(), lambda: f"the end\n{self.screen()}", deadline))

    def close(self):
        subprocess.run([shutil.which("tmux"), "-S", str(self._socket), "kill-server"], check=False, capture_output=True)
        self._directory.cleanup()
