#!/usr/bin/env python3
"""Checks dependencies against deny.toml where cargo-deny is not installed: licences, banned crates, second versions, sources.

Reads `cargo metadata --offline --locked` for each target that deny.toml names and that was fetched, or for the host; needs nothing but
Python's standard library. `--metadata FILE` and `--config FILE` let a test hand in its own. Advisories are cargo-deny's alone.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKEN = re.compile(r"\s*([()]|[^\s()]+)")


class Expression:
    """An SPDX expression. `MIT/Apache-2.0` is the old way to write OR."""

    def __init__(self, text):
        self.tokens = TOKEN.findall(text.replace("/", " OR "))
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self):
        token = self.peek()
        if token is None:
            raise ValueError("breaks off")
        self.at += 1
        return token

    def holds(self, allowed):
        """Whether the licences that are allowed are enough."""
        self.at = 0
        value = self.either(allowed)
        if self.peek() is not None:
            raise ValueError(f"{self.peek()!r} is one too many")
        return value

    def either(self, allowed):
        value = self.both(allowed)
        while self.peek() == "OR":
            self.take()
            value = self.both(allowed) or value
        return value

    def both(self, allowed):
        value = self.one(allowed)
        while self.peek() == "AND":
            self.take()
            value = self.one(allowed) and value
        return value

    def one(self, allowed):
        token = self.take()
        if token == "(":
            value = self.either(allowed)
            if self.take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if token in ("AND", "OR", "WITH", ")"):
            raise ValueError(f"{token!r} where a licence should be")
        if self.peek() == "WITH":
            self.take()
            token = f"{token} WITH {self.take()}"
        return token in allowed


def matches(spec, package):
    """Whether cargo-deny's `name`, `name@1.2.3` or `name:^1.2` means a package. Other ranges are not understood."""
    name, sign, version = re.fullmatch(r"([\w-]+)(?:(@|:\^)([\d.]+))?", spec).groups()
    if name != package["name"]:
        return False
    parts, wanted = package["version"].split("+")[0].split("."), version.split(".") if version else []
    return parts == wanted if sign == "@" else parts[: len(wanted)] == wanted


def check(metadata, config):
    """Every violation, as one line each."""
    nodes = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["id"] in nodes]
    named = lambda package: f"{package['name']} {package['version']}"
    wrong = []

    licences = config["licenses"]
    for package in packages:
        allowed = set(licences["allow"])
        for exception in licences.get("exceptions", []):
            if matches(exception["crate"], package):
                allowed.update(exception["allow"])
        text = package.get("license")
        if not text:
            wrong.append(f"{named(package)}: no licence in its Cargo.toml")
            continue
        try:
            if not Expression(text).holds(allowed):
                wrong.append(f"{named(package)}: licence {text!r} is not allowed")
        except ValueError as error:
            wrong.append(f"{named(package)}: licence {text!r} cannot be read: {error}")

    bans = config["bans"]
    for package in packages:
        for ban in bans.get("deny", []):
            if matches(ban["crate"], package):
                wrong.append(f"{named(package)}: banned: {ban.get('reason', 'see deny.toml')}")
    if bans.get("multiple-versions") == "deny":
        versions = defaultdict(list)
        for package in packages:
            if not any(matches(skip["crate"], package) for skip in bans.get("skip", [])):
                versions[package["name"]].append(package["version"])
        for name, found in sorted(versions.items()):
            if len(found) > 1:
                wrong.append(f"{name}: several versions: {', '.join(sorted(found))}")

    registries = set(config["sources"].get("allow-registry", []))
    for package in packages:
        source = package["source"]
        if source is not None and source.removeprefix("registry+") not in registries:
            wrong.append(f"{named(package)}: comes from {source}, which is not allowed")
    return wrong


def cargo(*arguments):
    done = subprocess.run([os.environ.get("CARGO", "cargo"), *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def read_metadata():
    """The graph of the host. Others' packages need not have been fetched."""
    compiler = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    host = re.search(r"^host: (.*)$", compiler, re.MULTILINE).group(1)
    arguments = ["metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    text = cargo(*arguments, "--offline") or cargo(*arguments)
    if text is None:
        sys.exit("check-licences: 'cargo metadata --locked' fails: is Cargo.lock up to date?")
    return json.loads(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metadata", type=Path)
    parser.add_argument("--config", type=Path, default=ROOT / "deny.toml")
    arguments = parser.parse_args()
    config = tomllib.loads(arguments.config.read_text())
    metadata = json.loads(arguments.metadata.read_text()) if arguments.metadata else read_metadata()
    wrong = check(metadata, config)
    for line in wrong:
        print(f"check-licences: {line}", file=sys.stderr)
    if wrong:
        print("check-licences: choose another dependency, or say in deny.toml why this one is fine", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
