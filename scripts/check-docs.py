#!/usr/bin/env python3
"""Checks that what the documentation points at is there.

- every relative link of a page leads to a file;
- ARCHITECTURE.md stays short, and what it names is there;
- every test that docs/reference/engines.md names is a function of the file beside it;
- every test that docs/internals/regressions.md names is there.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE_WORDS = 4500
GLOSSARY_WORDS = 25
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
    errors += check_regressions(ROOT / "docs/internals/regressions.md")
    errors += check_architecture(ROOT / "ARCHITECTURE.md")
    for line in errors:
        print(line, file=sys.stderr)
    return 1 if errors else 0


def check_architecture(page: Path) -> list[str]:
    """One page to read on the first day: details belong into docs/internals. Files that it names exist."""
    text = page.read_text()
    words = len(text.split())
    errors = [f"{page.name}: {words} words, more than {ARCHITECTURE_WORDS}: move details to docs/internals"] if words > ARCHITECTURE_WORDS else []
    named = re.findall(r"`(crates/[a-z0-9_/.-]+)`", text)
    errors += [f"{page.name}: {name} does not exist" for name in named if not (ROOT / name).exists()]
    glossary = text.partition("## Glossary")[2].partition("\n## ")[0]
    entries = len(re.findall(r"^\| [a-z]", glossary, re.MULTILINE)) - 1
    if entries > GLOSSARY_WORDS:
        errors.append(f"{page.name}: the glossary has {entries} words, more than {GLOSSARY_WORDS}")
    return errors


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


def check_regressions(page: Path) -> list[str]:
    """`path::test` names a function in the file, or in the folder. `…::test` is in the file named before it."""
    errors, where = [], page
    for path, test in re.findall(r"`([^`\s]+?)::(\w+)`", page.read_text()):
        if path == "test_attacks.py":
            path = "tests/interop/test_attacks.py"
        if path != "…":
            where = ROOT / path if path.startswith(("tests/", "python/", "fuzz/")) else ROOT / "crates" / path
        sources = where.rglob("*.rs") if where.is_dir() else [where]
        if not any(file.is_file() and re.search(rf"\b(fn|def) {test}\b", file.read_text()) for file in sources):
            errors.append(f"regressions.md: {where.relative_to(ROOT)} has no test {test}")
    return errors


if __name__ == "__main__":
    sys.exit(main())
