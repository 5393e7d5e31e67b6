#!/usr/bin/env python3
"""Checks that libraries are built once for all of `make test`.

Cargo gives a library the features that the selected packages want, so the program alone, the tests of the whole workspace and the
Python package can each need a build of their own of the same library. Dependencies that only name features make them equal
(crates/cli, crates/proto and python have some). This compares cargo's own plans and names the features that differ: the program is to
be the very one that tests run, and the Python package to add only what nobody else has, and its own allocator. A difference costs time
and breaks nothing: it is a warning, and an error with `--strict`.
"""

import json
import os
import subprocess
import sys

CARGO = os.environ.get("CARGO", "cargo")
WORKSPACE = ["test", "--workspace", "--exclude", "kvplane-python", "--no-run"]
PROGRAM = ["build", "-p", "kvplane"]
PYTHON = ["build", "-p", "kvplane-python", "--lib"]
# The Python package has it with another feature on purpose (python/Cargo.toml).
OWN = ("mimalloc",)


def plan(arguments):
    """Units of a build: each one a tuple with all that makes cargo build it separately, dependencies included."""
    # The plan is an unstable output of the stable cargo.
    command = [CARGO, *arguments, "--locked", "-Z", "unstable-options", "--unit-graph"]
    done = subprocess.run(command, env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"shared-builds: {' '.join(command)} failed:\n{done.stderr}")
    units = json.loads(done.stdout)["units"]
    made = {}

    def unit(at):
        if at not in made:
            one = units[at]
            profile = {key: value for key, value in one["profile"].items() if key not in ("name", "panic")}
            made[at] = (
                (one["pkg_id"], one["target"]["name"], tuple(one["target"]["kind"]), one["mode"], one["platform"]),
                tuple(one["features"]),
                json.dumps(profile, sort_keys=True),
                frozenset(unit(needed["index"]) for needed in one["dependencies"]),
            )
        return made[at]

    return {unit(at) for at in range(len(units))}


def main():
    workspace, program, python = plan(WORKSPACE), plan(PROGRAM), plan(PYTHON)
    known = {}
    for unit in workspace:
        known.setdefault(unit[0], []).append(unit)
    wrong = []
    for who, units in (("the program", program), ("the Python package", python)):
        for name, features, *_ in units - workspace:
            others = [set(other[1]) for other in known.get(name, [])]
            if others and set(features) not in others and not any(own in name[0] for own in OWN):
                nearest = min(others, key=lambda other: len(other ^ set(features)))
                wrong.append(f"{who} has {name[0]} with features {sorted(features)}, the workspace with {sorted(nearest)}")
    if program - workspace:
        wrong.append(f"{len(program - workspace)} libraries are built again for the program: it is not the one that tests run")
    for line in sorted(wrong):
        print(f"shared-builds: warning: {line}", file=sys.stderr)
    if wrong:
        sys.exit("--strict" in sys.argv)
    again = sum(1 for unit in python - workspace if unit[0] in known)
    print(f"shared-builds: one build of every library; {len(python - workspace)} units for the Python package, {again} of them again")


main()
