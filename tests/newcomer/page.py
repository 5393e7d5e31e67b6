"""A page's commands, and what it says that they print.

A block of kind `sh` is run. One of kind `sh terminal` is run in a terminal of its own, and not waited for. A block of kind `text`
right behind is what is printed: `…` stands for anything, and spaces for any number of them.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```([a-z]*)(?: (terminal))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    commands: str
    in_terminal: bool
    printed: str | None = None

    def is_as_printed(self, output: str) -> bool:
        if self.printed is None:
            return True
        parts = (r"\s+".join(map(re.escape, part.split())) for part in re.split(r"…", self.printed))
        return re.fullmatch(r"\s*" + r".*?".join(rf"\s*{part}\s*" for part in parts) + r"\s*", output, re.DOTALL) is not None


def steps(page: Path, under: str | None = None) -> list[Step]:
    """Every step of a page, or of one of its headings."""
    text = page.read_text()
    if under is not None:
        _, found, text = text.partition(f"\n## {under}\n")
        assert found, f"{page.name} has no heading {under!r}"
        text = text.partition("\n## ")[0]
    taken: list[Step] = []
    for kind, terminal, body in FENCE.findall(text):
        if kind == "sh":
            taken.append(Step(body, in_terminal=bool(terminal)))
        elif kind == "text" and taken and taken[-1].printed is None:
            taken[-1].printed = body
    return taken
