"""Somebody who has never heard of kvplane: a fresh clone, the README's commands, and the page of five minutes, word for word.

The clone has what is committed. Where this checkout has nothing else, the program that it has built is what the clone would build, and is
taken for it. Otherwise the clone's builds are kept in a directory of their own, which is gone afterwards: what this checkout has built of
others' crates is in it, so that only kvplane's own are built again. docs/internals/tests.md lists what else is different.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.plane import find_binary
from page import Step, steps
from shell import STAND_INS, Shell, environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("newcomer")


def git(*words):
    done = subprocess.run(["git", "-c", "safe.directory=*", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture(scope="module")
def built():
    """This checkout's program, if a clone would build the same: it names the last commit, and no file differs from that."""
    binary = find_binary()
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    (commit,) = re.findall(r"\((\w+)\)", version)
    last = git("rev-parse", "HEAD")
    is_last = last is not None and last.startswith(commit) and git("status", "--porcelain", "--untracked-files=no") == ""
    return binary if is_last else None


@pytest.fixture(scope="module")
def target(built):
    """Where the clone's builds are kept. What comes from others is linked, what is kvplane's left out: cargo cannot tell one checkout's
    from another's, and would take the clone's for this one's."""
    kept = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    ours = kept / "newcomer"
    shutil.rmtree(ours, ignore_errors=True)
    if built is not None:
        (ours / "debug").mkdir(parents=True)
        yield ours
        shutil.rmtree(ours, ignore_errors=True)
        return
    for part in ("deps", "build", ".fingerprint"):
        if (source := kept / "debug" / part).is_dir():
            shutil.copytree(source, ours / "debug" / part, copy_function=os.link, symlinks=True, ignore=shutil.ignore_patterns("*kvplane*"))
    yield ours
    shutil.rmtree(ours, ignore_errors=True)


@pytest.fixture(scope="module")
def clone(scratch, target, built):
    """A fresh clone. Where a release would be, there is what was built, at free ports."""
    # `cargo` by name is the stand-in from here on.
    os.environ.setdefault("NEWCOMER_CARGO", shutil.which(os.environ.get("CARGO", "cargo")) or "cargo")
    shell = Shell(scratch, environment(scratch, target, built), scratch)
    directory = scratch / "clone"
    if (ROOT / ".git").exists():
        shell.run(f"git clone --quiet '{ROOT}' clone")
    else:
        # Somebody unpacked an archive: what was made since is left out.
        shutil.copytree(ROOT, directory, ignore=shutil.ignore_patterns("target", ".venv*", "dist", "__pycache__"))
    (directory / "target/release").mkdir(parents=True)
    (directory / "target/release/kvplane").symlink_to(STAND_INS / "built/kvplane")
    yield directory, shell.environment
    shell.close()


@pytest.fixture
def shell(clone, tmp_path):
    directory, ours = clone
    shell = Shell(directory, ours, tmp_path)
    yield shell
    shell.close()


def commands_of_the_readme():
    (step,) = steps(ROOT / "README.md", under="Try it")
    lines = (line.partition("#")[0].strip() for line in step.commands.splitlines())
    return [line for line in lines if line]


def test_the_readme_has_two_commands(shell):
    assert commands_of_the_readme() == ["make demo", "make test"]


def test_the_first_command(shell):
    (first, _) = commands_of_the_readme()
    shown = shell.run(first)
    assert re.search(r"^false hits +kvplane 0,", shown, re.MULTILINE), shown


def test_the_second_command_is_what_ci_runs(shell):
    """To run it here would be to run this test in itself."""
    (_, second) = commands_of_the_readme()
    assert shell.run(f"{second} --dry-run").strip()
    assert f"exec {second}\n" in (shell.directory / ".ci/run").read_text()


def test_the_page_of_five_minutes(shell):
    taken = steps(shell.directory / "docs/guide/five-minutes.md")
    assert sum(step.in_terminal for step in taken) == 2, "an engine, and kvplane"
    for step in taken:
        shell.take(step)
    assert shell.waited.exists(), "the page was to wait for an engine that is not there yet"


def test_the_short_form_of_the_readme(shell):
    engine, plane, rest = steps(ROOT / "README.md", under="With your engine")
    assert engine.in_terminal and plane.in_terminal
    # The tour has built it.
    shell.take(Step("cargo build --release -p kvplane", False))
    shell.take(engine)
    shell.take(plane)
    path, *others, last = rest.commands.splitlines()
    # What the page waits for, the short form leaves to its reader.
    shell.run(f"{path}\nuntil kvplane ready --strict; do sleep 1; done")
    assert last.startswith("kvplane tail ")
    shell.take(Step("\n".join(others), False))
    # It goes on until it is stopped.
    shell.take(Step(f"{path}\n{last}", True))
    assert shell.terminal_says("vllm-0"), shell.heard()


def test_what_is_printed_is_told_from_what_is_not():
    def wanted(printed):
        return Step("", False, printed)

    table = wanted("A  B\nx  1  …\n")
    assert table.is_as_printed("A     B\nx     1     anything\n")
    assert not table.is_as_printed("A     B\nx     2     anything\n")
    assert wanted("{…\"tokens\":40…}").is_as_printed('{"a":{"tokens":40,"b":1}}')
    assert not wanted("{\"ready\":true}").is_as_printed('{"ready":false}')
    assert not wanted("one").is_as_printed("one\ntwo")
