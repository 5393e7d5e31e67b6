#!/usr/bin/env python3
"""Checks that the rooms keep to themselves: who may depend on whom, who may use which library, and how long files get.

Reads `cargo metadata --no-deps` and the sources; needs nothing but Python's standard library. `--metadata FILE` and
`--root DIR` let a test hand in a workspace of its own.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

# A room, and the rooms that it may use. `*` is anything. Dependencies point one way: no cycle can be written here
# without being seen.
ROOMS = {
    "kvplane-core": set(),
    "kvplane-wire": {"kvplane-core"},
    "kvplane-stream": {"kvplane-core", "kvplane-wire"},
    "kvplane-store": {"kvplane-core", "kvplane-runtime", "kvplane-stream"},
    "kvplane-bus": {"kvplane-core"},
    "kvplane-socket": {"kvplane-core", "kvplane-runtime", "kvplane-wire"},
    "kvplane-index": {"kvplane-core"},
    "kvplane-catalog": {"kvplane-core", "kvplane-index", "kvplane-runtime", "kvplane-stream", "kvplane-wire"},
    "kvplane-discovery": {"kvplane-core", "kvplane-transport", "kvplane-wire"},
    "kvplane-kubernetes": {"kvplane-core", "kvplane-discovery", "kvplane-runtime", "kvplane-transport"},
    "kvplane-ingest": {
        "kvplane-catalog", "kvplane-core", "kvplane-discovery", "kvplane-index", "kvplane-proto", "kvplane-runtime", "kvplane-socket", "kvplane-store", "kvplane-stream",
        "kvplane-transport", "kvplane-wire",
    },
    "kvplane-transport": set(),
    "kvplane-runtime": set(),
    "kvplane-ops": {"kvplane-core", "kvplane-proto", "kvplane-transport"},
    "kvplane-proto": {"kvplane-core"},
    "kvplane-hints": set(),
    "kvplane-route": {"kvplane-core"},
    "kvplane-receipts": {"kvplane-core"},
    "kvplane-lab": {"kvplane-core", "kvplane-route"},
    "kvplane-prompt": {"kvplane-core", "kvplane-runtime", "kvplane-transport"},
    "kvplane-inference": {"kvplane-prompt", "kvplane-route"},
    "kvplane-gateway": {
        "kvplane-access", "kvplane-core", "kvplane-inference", "kvplane-prompt", "kvplane-route", "kvplane-runtime", "kvplane-transport",
    },
    "kvplane-picker": {"kvplane-core", "kvplane-inference", "kvplane-prompt", "kvplane-proto", "kvplane-runtime"},
    "kvplane-report": {
        "kvplane-core", "kvplane-hints", "kvplane-ingest", "kvplane-proto", "kvplane-runtime", "kvplane-stream",
        "kvplane-transport",
    },
    "kvplane-access": {"kvplane-core", "kvplane-runtime", "kvplane-transport"},
    "kvplane-front": {
        "kvplane-access", "kvplane-ingest", "kvplane-runtime", "kvplane-stream", "kvplane-transport", "kvplane-wire",
    },
    "kvplane-metrics": {
        "kvplane-access", "kvplane-catalog", "kvplane-core", "kvplane-front", "kvplane-hints", "kvplane-index",
        "kvplane-ingest", "kvplane-kubernetes", "kvplane-prompt", "kvplane-report", "kvplane-transport",
    },
    "kvplane-republish": {
        "kvplane-core", "kvplane-ingest", "kvplane-runtime", "kvplane-socket", "kvplane-stream", "kvplane-wire",
    },
    "kvplane-server": {
        "kvplane-access", "kvplane-catalog", "kvplane-core", "kvplane-discovery", "kvplane-doctor", "kvplane-front", "kvplane-gateway", "kvplane-hints", "kvplane-inference", "kvplane-ingest", "kvplane-kubernetes", "kvplane-metrics", "kvplane-ops", "kvplane-picker", "kvplane-prompt", "kvplane-proto", "kvplane-receipts", "kvplane-report",
        "kvplane-republish", "kvplane-route", "kvplane-runtime", "kvplane-stream", "kvplane-transport", "kvplane-wire",
    },
    "kvplane-client": {"kvplane-core", "kvplane-proto", "kvplane-runtime", "kvplane-transport"},
    "kvplane-sim": {"kvplane-core", "kvplane-proto", "kvplane-runtime", "kvplane-socket", "kvplane-wire"},
    "kvplane-doctor": {
        "kvplane-core", "kvplane-discovery", "kvplane-ingest", "kvplane-runtime", "kvplane-socket", "kvplane-transport", "kvplane-wire",
    },
    "kvplane-embed": {
        "kvplane-catalog", "kvplane-core", "kvplane-ingest", "kvplane-proto", "kvplane-runtime", "kvplane-stream", "kvplane-transport",
        "kvplane-wire",
    },
    "kvplane-python": {"kvplane-catalog", "kvplane-core", "kvplane-embed", "kvplane-ingest", "kvplane-stream", "kvplane-wire"},
    # For tests of other rooms alone.
    "kvplane-testkit": {
        "kvplane-core", "kvplane-ingest", "kvplane-proto", "kvplane-server", "kvplane-sim", "kvplane-transport", "kvplane-wire",
    },
    "kvplane": "*",
}

# Rooms that tests and examples, and only they, may use besides. `*` is anything.
ROOMS_IN_TESTS = {
    "kvplane-store": {"kvplane-wire"},
    "kvplane-wire": {"kvplane-proto"},
    "kvplane-stream": {"kvplane-proto"},
    "kvplane-kubernetes": {"kvplane-core", "kvplane-discovery", "kvplane-runtime", "kvplane-transport"},
    "kvplane-ingest": {"kvplane-sim", "kvplane-testkit"},
    "kvplane-ops": {"kvplane-sim", "kvplane-wire"},
    "kvplane-report": {"kvplane-sim"},
    "kvplane-server": {"kvplane-sim", "kvplane-socket", "kvplane-testkit"},
    "kvplane-doctor": {"kvplane-sim"},
    "kvplane-client": "*",
}

# The only room with unsafe code.
UNSAFE_ROOM = "kvplane-index"

# A library, the rooms that may use it, and why no other may.
ONLY = {
    "zmq": ({"kvplane-socket"}, "crates/socket is the only user of libzmq, in its tests"),
    # The Python package only names its features.
    "mio": ({"kvplane-socket", "kvplane-python"}, "crates/socket has the only event loop beside tokio"),
    "clap": ({"kvplane"}, "crates/cli is the only room with a command line"),
    "prometheus-client": ({"kvplane-metrics"}, "crates/metrics writes the whole page of metrics"),
    "kube": ({"kvplane-kubernetes"}, "crates/kubernetes has the only client of an API server"),
    "k8s-openapi": ({"kvplane-kubernetes"}, "crates/kubernetes has the only client of an API server"),
    "anyhow": ({"kvplane"}, "the other rooms have typed errors"),
}

# Libraries that no room may use outside its tests, and why.
ONLY_IN_TESTS = {
    "zmq": "what is built speaks ZMTP by itself, and needs no C++",
}

# A library, the rooms that may not use it (in tests neither), and why.
NEVER = {
    "tokio": ({"kvplane-core", "kvplane-wire", "kvplane-stream", "kvplane-hints", "kvplane-receipts", "kvplane-route"}, "these rooms are free of IO: time and bytes are passed in"),
}

LINES_MAX = 600
LINES_WARN = 400


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metadata", type=Path, help="cargo metadata as a file, instead of asking cargo")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args()

    if options.metadata:
        metadata = json.loads(options.metadata.read_text())
    else:
        metadata = ask_cargo(options.root)
    errors, warnings = [], []
    for package in sorted(metadata["packages"], key=lambda package: package["name"]):
        errors += check_dependencies(package)
        errors += check_lints(package, options.root)
        found = check_lengths(package, options.root)
        errors += found[0]
        warnings += found[1]
    for missing in sorted(ROOMS.keys() - {package["name"] for package in metadata["packages"]}):
        errors.append(f"{missing} is in the table of scripts/check-rooms.py, but not in the workspace: remove it there")
    for line in warnings:
        print(f"check-rooms: warning: {line}", file=sys.stderr)
    for line in errors:
        print(f"check-rooms: {line}", file=sys.stderr)
    if errors:
        return 1
    print(f"check-rooms: {len(metadata['packages'])} rooms in order")
    return 0


def ask_cargo(root: Path) -> dict:
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--no-deps", "--format-version=1", "--offline"]
    try:
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"check-rooms: cannot read the workspace: {error}")
    return json.loads(done.stdout)


def check_dependencies(package: dict) -> list[str]:
    name = package["name"]
    if name not in ROOMS:
        return [f"{name} is not in the table of scripts/check-rooms.py: say there which rooms it may use"]
    allowed = ROOMS[name]
    errors = []
    for dependency in package["dependencies"]:
        other, in_tests = dependency["name"], dependency["kind"] == "dev"
        where = f"{name} ({'dev-dependency' if in_tests else 'dependency'})"
        besides = ROOMS_IN_TESTS.get(name, set()) if in_tests else set()
        if other in ROOMS and "*" not in (allowed, besides):
            permitted = allowed | besides
            if other not in permitted:
                may = ", ".join(sorted(permitted)) or "no other room"
                errors.append(f"{where} may not use {other}: it may use {may}")
        if other in ONLY and name not in ONLY[other][0]:
            errors.append(f"{where} may not use {other}: {ONLY[other][1]}")
        if other in ONLY_IN_TESTS and not in_tests:
            errors.append(f"{where} may not use {other} outside its tests: {ONLY_IN_TESTS[other]}")
        if other in NEVER and name in NEVER[other][0]:
            errors.append(f"{where} may not use {other}: {NEVER[other][1]}")
    return errors


def check_lints(package: dict, root: Path) -> list[str]:
    manifest = Path(package["manifest_path"])
    lints = tomllib.loads(manifest.read_text()).get("lints", {})
    if lints.get("workspace") is True:
        return []
    if package["name"] == UNSAFE_ROOM:
        return check_unsafe_lints(lints, relative(manifest, root), root)
    return [f"{relative(manifest, root)} does not take the workspace's lints: add\n\n    [lints]\n    workspace = true\n"]


def check_unsafe_lints(lints: dict, manifest: str, root: Path) -> list[str]:
    """The one room with unsafe code: every other lint of the workspace, and a reason for each unsafe block."""
    workspace = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["lints"]
    errors = []
    for tool, wanted in workspace.items():
        for lint, level in wanted.items():
            if lint != "unsafe_code" and lints.get(tool, {}).get(lint) != level:
                errors.append(f"{manifest} does not take the workspace's lint {tool}.{lint}")
    if lints.get("clippy", {}).get("undocumented_unsafe_blocks") != "deny":
        errors.append(f"{manifest} has unsafe code: deny clippy.undocumented_unsafe_blocks")
    return errors


def check_lengths(package: dict, root: Path) -> tuple[list[str], list[str]]:
    errors, warnings = [], []
    crate = Path(package["manifest_path"]).parent
    for path in sorted(crate.rglob("*.rs")):
        parts = path.relative_to(crate).parts
        if parts[0] in {"tests", "benches", "target"} or "tests" in parts or path.name == "tests.rs":
            continue
        lines = lines_without_tests(path.read_text())
        if lines > LINES_MAX:
            errors.append(f"{relative(path, root)} has {lines} lines without its tests, more than {LINES_MAX}: split it")
        elif lines > LINES_WARN:
            warnings.append(f"{relative(path, root)} has {lines} lines without its tests, more than {LINES_WARN}")
    return errors, warnings


def lines_without_tests(text: str) -> int:
    """Counts what comes before a trailing `#[cfg(test)] mod …`."""
    tests = re.search(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{$", text, re.MULTILINE)
    return text[: tests.start() if tests else len(text)].count("\n")


def relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


if __name__ == "__main__":
    sys.exit(main())
