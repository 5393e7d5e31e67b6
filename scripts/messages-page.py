#!/usr/bin/env python3
"""Writes docs/reference/messages.md, every call, message and field of kvplane.v1, from the contract and its comments.

--check says whether it would be different, and fails if it would.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/messages.md"
CONTRACTS = ["plane", "admin"]
HEAD = """# kvplane.v1, message by message

Every call, message and field, written by `scripts/messages-page.py` from the contract. How they are used is in [kvplane.v1](protocol.md) and
[operations on engines](operations.md).
"""

CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
FIELD = re.compile(r"(?:(repeated|optional) )?(map<.+>|[\w.]+) (\w+) = (\d+)(?: \[.*\])?;")
VALUE = re.compile(r"(\w+) = (\d+);")
BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = "\n".join([HEAD, *(line for name in CONTRACTS for line in contract(name))]).rstrip() + "\n"
    if not options.check:
        PAGE.write_text(text)
    elif not PAGE.is_file() or PAGE.read_text() != text:
        print(f"{PAGE.name}: the contract has changed; `make reference` writes the page", file=sys.stderr)
        return 1
    return 0


def contract(name: str):
    """A page's lines, block by block. Comments stand before what they are about."""
    path = f"proto/kvplane/v1/{name}.proto"
    yield f"## [`{path}`](../../{path})\n"
    said: list[str] = []
    inside: list[str] = []
    choice = ""
    for line in map(str.strip, (ROOT / path).read_text().partition("package ")[2].splitlines()[1:]):
        if line.startswith("//"):
            said.append(line.removeprefix("//").strip())
            continue
        words, said = " ".join(said).replace("|", "\\|"), []
        if block := BLOCK.match(line):
            kind, title, empty = block.groups()
            if kind == "oneof":
                choice = f"(one of `{title}`) "
            else:
                yield f"### {title}\n"
                if words:
                    yield f"{words}\n"
                yield "Nothing.\n" if empty else TABLES[kind]
            if not empty:
                inside.append(kind)
        elif line == "}":
            ended = inside.pop()
            choice = "" if ended == "oneof" else choice
            if not inside:
                yield ""
        elif found := CALL.match(line):
            call, asked_often, asked, told_often, told = found.groups()
            often = {True: "stream of ", False: ""}
            yield f"| `{call}` | {often[bool(asked_often)]}`{asked}` | {often[bool(told_often)]}`{told}` | {words} |"
        elif inside[-1:] == ["enum"] and (found := VALUE.match(line)):
            yield f"| `{found[1]}` | {found[2]} | {words} |"
        elif found := FIELD.match(line):
            label, kind, field, number = found.groups()
            yield f"| `{field}` | {number} | {label + ' ' if label else ''}`{kind}` | {choice}{words} |"
        elif line and not line.startswith(("reserved", "option")):
            raise SystemExit(f"{path}: {line!r} is not understood")


TABLES = {
    "service": "| call | asked with | answered with | |\n|---|---|---|---|",
    "message": "| field | number | type | |\n|---|---|---|---|",
    "enum": "| value | number | |\n|---|---|---|",
}


if __name__ == "__main__":
    sys.exit(main())
