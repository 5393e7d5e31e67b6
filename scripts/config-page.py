#!/usr/bin/env python3
"""Writes the tables of docs/reference/config.md from the schema of the configuration.

    kvplane config schema | scripts/config-page.py           writes the page
    kvplane config schema | scripts/config-page.py --check   says what would be different, and fails if anything would

A table stands between `<!-- keys of PATH -->` and `<!-- end -->`, where PATH leads through the tree: `engine.republish`. Every path
needs a place on the page.
"""

import argparse
import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/config.md"
# Comments in Rust quote such names so that they are not taken for code.
NAME = re.compile(r"`(SGLang|TokenSpeed|ZeroMQ)`")
PLACE = re.compile(r"(<!-- keys of ([a-z_.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    tables = dict(walk(json.load(sys.stdin)))
    before = PAGE.read_text()
    places = [place[1] for place in PLACE.findall(before)]
    wrong = [f"{path}: has no place on the page" for path in tables if path not in places]
    wrong += [f"{path}: is on the page, and not in the schema" for path in places if path not in tables]
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    after = PLACE.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n\n{found[3]}", before)
    if not options.check:
        PAGE.write_text(after)
    elif after != before:
        print(f"{PAGE.name}: keys have changed; `make reference` writes them", file=sys.stderr)
        return 1
    return 0


def walk(schema: dict):
    """Every table of the tree: its path, and what the page says of it."""
    definitions = schema["$defs"]

    def below(path: str, table: dict):
        if path:
            yield path, rows(table, definitions)
        for key, value in table["properties"].items():
            inner = table_of(value, definitions)
            if inner is not None:
                yield from below(f"{path}.{key}" if path else key, inner)

    yield from below("", schema)


def resolved(value: dict, definitions: dict) -> dict:
    """A value without references and without "or nothing"."""
    for choice in value.get("anyOf", []):
        if choice != {"type": "null"}:
            return resolved(choice, definitions)
    if "$ref" in value:
        return resolved(definitions[value["$ref"].removeprefix("#/$defs/")], definitions)
    return value


def table_of(value: dict, definitions: dict) -> dict | None:
    found = resolved(value, definitions)
    if found.get("type") == "array":
        found = resolved(found["items"], definitions)
    return found if "properties" in found else None


def rows(table: dict, definitions: dict) -> str:
    required = table.get("required", [])
    names = sorted(table["properties"], key=lambda name: (name not in required, name))
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name in names:
        value = table["properties"][name]
        # What is left out of a printed configuration while it is false has no default in the schema.
        default = value.get("default", False if value.get("type") == "boolean" else None)
        default = "required" if name in required else shown(default)
        meaning = NAME.sub(r"\1", value["description"]).replace("\n", " ").replace("|", "\\|").removesuffix(".")
        lines.append(f"| `{name}` | {type_of(value, definitions)} | {default} | {meaning} |")
    return "\n".join(lines)


def shown(default) -> str:
    if default is None:
        return "none"
    if isinstance(default, float):
        # Narrow numbers are written with digits that nobody meant.
        default = round(default, 6)
    if default == [] or isinstance(default, dict):
        return "below" if default else "none"
    return f"`{default if isinstance(default, str) and default else json.dumps(default)}`"


NAMES = {"string": "text", "integer": "number", "number": "number", "boolean": "`true`, `false`"}


def type_of(value: dict, definitions: dict) -> str:
    reference = value.get("$ref") or next((choice["$ref"] for choice in value.get("anyOf", []) if "$ref" in choice), "")
    if reference.endswith(("/Size", "/Duration")):
        return reference.rpartition("/")[2].lower()
    found = resolved(value, definitions)
    choices = found.get("enum") or [choice["const"] for choice in found.get("oneOf", [])]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices if choice is not None)
    if "properties" in found:
        return "table"
    name = next(name for name in flat(found["type"]) if name != "null")
    if name == "array":
        inner = type_of(found["items"], definitions)
        return "tables" if inner == "table" else f"list of {inner}"
    if name == "object":
        return f"{type_of(found['additionalProperties'], definitions)} by name"
    return NAMES[name]


def flat(names) -> list[str]:
    return names if isinstance(names, list) else [names]


if __name__ == "__main__":
    sys.exit(main())
