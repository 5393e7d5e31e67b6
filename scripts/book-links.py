#!/usr/bin/env python3
"""mdBook runs this before it renders a book: links that leave the book lead nowhere there, and become plain text.

The users' book is docs/ without docs/internals/, which is a book of its own.

Reads `[context, book]` as JSON and writes the book; with `supports RENDERER` it only says yes.
"""

import json
import posixpath
import re
import sys

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def within(path: str, text: str) -> str:
    """The page at `path`, without the links that leave the book."""

    def kept(link: re.Match) -> str:
        words, target = link.groups()
        place, _, _ = target.partition("#")
        if not place or re.match(r"[a-z]+:", target):
            return link[0]
        leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
        return words if leads.startswith(("..", "internals/")) else link[0]

    return LINK.sub(kept, text)


def walk(part) -> None:
    """Pages are wherever they are: mdBook has moved them between its versions."""
    if isinstance(part, list):
        for inner in part:
            walk(inner)
    elif isinstance(part, dict):
        path = part.get("source_path") or part.get("path")
        if isinstance(part.get("content"), str) and isinstance(path, str):
            part["content"] = within(path, part["content"])
        for inner in part.values():
            walk(inner)


def main() -> None:
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    walk(book)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
