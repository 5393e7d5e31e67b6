#!/usr/bin/env python3
"""Checks that what the documentation points at is there.

- every relative link of a page leads to a file;
- every test that docs/reference/engines.md names is a function of the file beside it;
- every word for a trouble has a row in docs/reference/troubles.md.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
NAMED = re.compile(r"`([a-z0-9_]+)`")


def main() -> int:
    errors = []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for page in pages:
        for target in LINK.findall(page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                errors.append(f"{page.relative_to(ROOT)}: {target} does not exist")
    errors += check_engines(ROOT / "docs/reference/engines.md")
    errors += check_troubles(ROOT / "docs/reference/troubles.md")
    for line in errors:
        print(line, file=sys.stderr)
    return 1 if errors else 0


def check_troubles(page: Path) -> list[str]:
    text = page.read_text()
    words = re.findall(r'^pub\(crate\) const [A-Z_]+: &str = "([a-z_]+)";', (ROOT / "crates/ingest/src/trouble.rs").read_text(), re.MULTILINE)
    return [f"{page.name}: {word} has no row" for word in words if f"`{word}`" not in text]


def check_engines(page: Path) -> list[str]:
    """Rows of the list of tests are `| letter | tests | file |`."""
    errors = []
    text = page.read_text()
    tables, _, listed = text.partition("## Tests")
    letters = set()
    for row in listed.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != 3 or cells[1] in ("test", "---"):
            continue
        letters.add(cells[0])
        file = ROOT / cells[2].strip("`")
        if not file.is_file():
            errors.append(f"engines.md: {cells[2]} does not exist")
            continue
        source = file.read_text()
        for test in NAMED.findall(cells[1]):
            if not re.search(rf"\bfn {test}\b", source):
                errors.append(f"engines.md: {cells[2]} has no test {test}")
    for group in re.findall(r"\(((?:[A-Za-z](?:, )?)+)\)", tables):
        for letter in group.split(", "):
            if len(letter) == 1 and letter not in letters:
                errors.append(f"engines.md: ({letter}) is not in the list of tests")
    return errors


if __name__ == "__main__":
    sys.exit(main())
