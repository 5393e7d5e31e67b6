#!/usr/bin/env python3
"""Checks that the documentation is whole.

- docs/SUMMARY.md (the users' book) and docs/internals/SUMMARY.md (the contributors') list every page of theirs, once, and nothing else;
- every link with an anchor leads to a heading;
- every test that a page names as "`test` in `file`" is a function of that file;
- every row of the pages that say what is shown by a test names one, with a link to its file, or says that there is none;
- docs/reference/messages.md is what the contract says;
- the README has at most 700 words, and the users' book at most 18,000 (without its reference).
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INTERNALS = DOCS / "internals"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SHOWN_BY = re.compile(r"((?:`[a-z0-9_]+`(?:, )?)+) in \[?`([\w/.-]+\.(?:rs|py))`(?:\]\(([^)]+)\))?")
# Pages whose rows are claims.
SHOWING = ["docs/reference/failures.md", "docs/reference/compatibility.md"]
# A form to copy, and no page to read.
UNLISTED = {"SUMMARY.md", "adr/000-template.md"}
# Words of the README, as `wc -w` counts them.
README_WORDS = 700
# What has a letter or a digit counts as a word, and code blocks are not read: they are commands to copy, and what they print.
BOOK_WORDS = 18_000
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def main() -> int:
    pages = [*ROOT.glob("*.md"), *DOCS.glob("**/*.md")]
    errors = [*check_summary(), *check_anchors(pages), *check_tests(pages), *check_rows(), *check_length()]
    for line in errors:
        print(line, file=sys.stderr)
    written = subprocess.run([sys.executable, ROOT / "scripts/messages-page.py", "--check"], check=False)
    return 1 if errors or written.returncode else 0


def users_pages() -> list[Path]:
    """What the users' book is made of; the contributors' is in a directory of its own."""
    return [page for page in DOCS.glob("**/*.md") if INTERNALS not in page.parents]


def check_summary() -> list[str]:
    return [*check_listed(DOCS, users_pages()), *check_listed(INTERNALS, list(INTERNALS.glob("**/*.md")))]


def check_listed(book: Path, pages: list[Path]) -> list[str]:
    summary = book / "SUMMARY.md"
    name = summary.relative_to(ROOT)
    listed = Counter(LINK.findall(summary.read_text()))
    there = {page.relative_to(book).as_posix() for page in pages} - UNLISTED
    errors = [f"{name}: {page} is not listed" for page in sorted(there - listed.keys())]
    errors += [f"{name}: {page} does not exist" for page in sorted(listed.keys() - there)]
    return errors + [f"{name}: {page} is listed {times} times" for page, times in listed.items() if times > 1]


def check_length() -> list[str]:
    readme = len((ROOT / "README.md").read_text().split())
    errors = [f"README.md: has {readme} words, and may have {README_WORDS}"] if readme > README_WORDS else []
    lengths = {page: words(page) for page in users_pages() if page.parent != DOCS / "reference" and page.name not in UNLISTED}
    total = sum(lengths.values())
    if total > BOOK_WORDS:
        longest = sorted(lengths, key=lengths.__getitem__, reverse=True)[:5]
        named = ", ".join(f"{page.relative_to(DOCS)} {lengths[page]}" for page in longest)
        errors.append(f"docs: the users' book has {total} words, and may have {BOOK_WORDS}; the longest pages: {named}")
    return errors


def words(page: Path) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in FENCE.sub("", page.read_text()).split())


def check_anchors(pages: list[Path]) -> list[str]:
    errors = []
    for page in pages:
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if "://" in link or not anchor or target.suffix != ".md" or not target.is_file():
                continue
            if anchor not in anchors(target):
                errors.append(f"{page.relative_to(ROOT)}: {link} leads to no heading")
    return errors


def check_tests(pages: list[Path]) -> list[str]:
    errors = []
    for page in pages:
        for names, path, link in SHOWN_BY.findall(page.read_text()):
            file = ROOT / path
            if link and (page.parent / link).resolve() != file:
                errors.append(f"{page.relative_to(ROOT)}: {link} is not {path}")
            source = file.read_text() if file.is_file() else ""
            for name in re.findall(r"`(\w+)`", names):
                if not re.search(rf"\b(?:fn|def) {name}\b", source):
                    errors.append(f"{page.relative_to(ROOT)}: {path} has no test {name}")
    return errors


def check_rows() -> list[str]:
    errors = []
    for page in SHOWING:
        rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
        # The first two of a table are its head.
        heads = {at + offset for at, row in enumerate(rows[1:]) if re.fullmatch(r"[|\- ]+", row) for offset in (0, 1)}
        for at, row in enumerate(rows):
            shown = any(link for _, _, link in SHOWN_BY.findall(row))
            if at not in heads and not shown and "not tested" not in row:
                errors.append(f"{page}: no test is linked: {row}")
    return errors


def anchors(page: Path) -> set[str]:
    """Of every heading, as hosts of Markdown make them: a title that comes again gets a number."""
    found: Counter[str] = Counter()
    names = set()
    for title in HEADING.findall(FENCE.sub("", page.read_text())):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


if __name__ == "__main__":
    sys.exit(main())
