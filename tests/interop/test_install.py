"""What is installed and what is shipped: the program, and everything that belongs to it."""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.plane import ROOT, clean_environment, run

FILES = {
    "bin/kvplane",
    "lib/systemd/system/kvplane.service",
    "share/bash-completion/completions/kvplane",
    "share/doc/kvplane/LICENSE",
    "share/fish/vendor_completions.d/kvplane.fish",
    "share/kvplane/grafana/kvplane.json",
    "share/kvplane/kvplane.toml",
    "share/kvplane/manifest",
    "share/kvplane/prometheus/alerts.yaml",
    "share/zsh/site-functions/_kvplane",
    "share/man/man1/kvplane.1",
}
# Pages and the pictures in them, by where they are in a source tree.
FILES |= {f"share/doc/kvplane/{page.relative_to(ROOT)}" for pages in ("*.md", "docs/**/*.md", "docs/images/*.png") for page in ROOT.glob(pages)}


@pytest.fixture(scope="module")
def commands(binary):
    """Those that `kvplane --help` lists."""
    listed = run(binary, "--help").stdout.partition("\nCommands:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert {"serve", "doctor", "completions"} <= set(found), listed
    return [command for command in found if command != "help"]


def try_make(*words, **environment):
    """make, without the flags of the make that runs the tests."""
    kept = {name: value for name, value in clean_environment(**environment).items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", "--no-print-directory", "-C", ROOT, *words], capture_output=True, text=True, env=kept)


def make(binary, *words, **environment):
    """make, with a program that is there already."""
    done = try_make(f"BINARY={binary}", *words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tools_but(directory, *missing):
    """A PATH with every tool of the system but some."""
    directory.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(place).glob("*"):
            if tool.name not in missing:
                (directory / tool.name).unlink(missing_ok=True)
                (directory / tool.name).symlink_to(tool)
    return str(directory)


def files(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def version(binary):
    done = run(binary, "--version")
    assert done.returncode == 0
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory, binary):
    root = tmp_path_factory.mktemp("root")
    make(binary, "install", f"DESTDIR={root}", "PREFIX=/opt/kvplane")
    return root / "opt/kvplane"


def test_everything_is_there(installed, binary, commands):
    there = files(installed)
    assert FILES | {f"share/man/man1/kvplane-{command}.1" for command in commands} <= there
    assert {path for path in there - FILES if not path.startswith("share/man/man1/kvplane-")} == set()
    assert set((installed / "share/kvplane/manifest").read_text().split()) == there
    assert version(installed / "bin/kvplane") == version(binary)
    assert os.access(installed / "bin/kvplane", os.X_OK)
    # Stripped: names of functions are not in it any more.
    assert (installed / "bin/kvplane").stat().st_size < binary.stat().st_size


def test_the_unit_starts_what_was_installed(installed):
    unit = (installed / "lib/systemd/system/kvplane.service").read_text()
    assert "ExecStart=/opt/kvplane/bin/kvplane serve --config /etc/kvplane/kvplane.toml" in unit
    assert "Type=notify" in unit and "/usr/bin/kvplane" not in unit


def test_the_example_is_a_configuration(installed):
    example = installed / "share/kvplane/kvplane.toml"
    done = run(installed / "bin/kvplane", "serve", "--config", example, "--dump-config")
    assert done.returncode == 0, done.stderr
    assert "[[engine]]" not in done.stdout, "nobody's engine is where an example says"
    # What is commented out is right, too, once it is wanted.
    engines = [block.partition("\n\n")[0] for block in example.read_text().split("# [[engine]]\n")[1:]]
    other = installed.parent / "other.toml"
    other.write_text("".join("[[engine]]\n" + re.sub(r"^# ?(?=\w+ =)", "", block, flags=re.MULTILINE) + "\n" for block in engines))
    done = run(installed / "bin/kvplane", "serve", "--config", other, "--dump-config")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[[engine]]") == 2


@pytest.mark.parametrize("shell,path", [
    ("bash", "share/bash-completion/completions/kvplane"),
    ("zsh", "share/zsh/site-functions/_kvplane"),
    ("fish", "share/fish/vendor_completions.d/kvplane.fish"),
])
def test_completions_are_scripts_of_their_shell(installed, commands, shell, path):
    script = installed / path
    for command in commands:
        assert command in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", script], check=True)


def test_bash_completes_a_command(installed):
    script = installed / "share/bash-completion/completions/kvplane"
    ask = f"source {script}; COMP_WORDS=(kvplane $0); COMP_CWORD=1; _kvplane kvplane $0 kvplane; echo ${{COMPREPLY[@]}}"
    offered = subprocess.run(["bash", "-c", ask, "comp"], capture_output=True, text=True, check=True).stdout.split()
    assert offered == ["completions"]


def test_every_command_has_a_manual_page(installed, commands):
    pages = installed / "share/man/man1"
    for command in commands:
        page = (pages / f"kvplane-{command}.1").read_text()
        assert f".TH kvplane-{command} 1" in page
        assert ".SH DESCRIPTION" in page
    assert ".SH NOTES" in (pages / "kvplane-serve.1").read_text()
    if shutil.which("man"):
        for page in pages.iterdir():
            done = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, env=clean_environment(LC_ALL="C.UTF-8", MANWIDTH="100"))
            assert done.returncode == 0 and page.stem.split("-")[0] in done.stdout, done.stderr


def test_uninstalling_leaves_what_is_others(tmp_path, binary):
    make(binary, "install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    other = tmp_path / "usr/share/man/man1/other.1"
    other.write_text("")
    make(binary, "uninstall", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    assert files(tmp_path) == {"usr/share/man/man1/other.1"}
    # What others may have made is left, also empty; what is kvplane's own is gone.
    assert (tmp_path / "usr/bin").is_dir() and (tmp_path / "usr/share/doc").is_dir()
    assert not list(tmp_path.rglob("kvplane"))


def test_an_upgrade_takes_away_what_is_no_more(tmp_path, binary):
    make(binary, "install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    root = tmp_path / "usr"
    whole = files(root)
    old = "share/kvplane/of-an-earlier-version"
    (root / old).write_text("")
    manifest = root / "share/kvplane/manifest"
    manifest.write_text("".join(f"{line}\n" for line in sorted([*manifest.read_text().split(), old])))
    make(binary, "install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    assert files(root) == whole


def test_whoever_installs_it_everybody_may_read_it(tmp_path, binary):
    masked = f"umask 077; exec make --no-print-directory -C '{ROOT}' BINARY='{binary}' install DESTDIR='{tmp_path}/root' PREFIX=/usr"
    subprocess.run(["bash", "-c", masked], check=True, capture_output=True, env=clean_environment())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "root").rglob("*")}
    assert modes == {0o644, 0o755}


def test_what_cannot_be_installed_leaves_nothing(tmp_path, binary):
    for words, expected in [(["BINARY=/bin/false", "PREFIX=/usr"], ""), ([f"BINARY={binary}", "PREFIX=usr"], "not an absolute path")]:
        done = try_make("install", f"DESTDIR={tmp_path}/", *words)
        assert done.returncode != 0 and expected in done.stderr, done
        assert files(tmp_path) == set()


@pytest.mark.timeout(300)
def test_what_is_missing_is_named(tmp_path, binary):
    """Without Rust and Python there is an archive of a program that is there already; to build one, Rust is asked for."""
    path = tools_but(tmp_path / "tools", "cargo", "rustc", "rustup", "python3", "python")
    make(binary, "dist", f"DIST={tmp_path}/dist", PATH=path, CARGO="cargo")
    (archive,) = (tmp_path / "dist").glob("kvplane-*.tar.gz")
    assert f"-{os.uname().machine}-linux" in archive.name
    done = try_make("install", f"DESTDIR={tmp_path}/root", PATH=path, CARGO="cargo")
    assert done.returncode != 0 and "install Rust" in done.stderr and "BINARY=FILE" in done.stderr, done
    done = try_make("rooms", PATH=path, PYTHON="python3")
    assert done.returncode != 0 and "Python 3.11" in done.stderr, done
    # Each word is one that somebody can act on.
    old = tmp_path / "old-cargo"
    old.write_text("#!/bin/sh\necho cargo 1.70.0\n")
    old.chmod(0o755)
    done = try_make("compilers", CARGO=str(old))
    assert done.returncode != 0 and "1.70.0 is too old" in done.stderr, done


@pytest.mark.timeout(300)
def test_the_archive_is_the_same_twice_and_runs(tmp_path, binary):
    made = []
    for directory in (tmp_path / "one", tmp_path / "two"):
        make(binary, "dist", f"DIST={directory}")
        (archive,) = directory.glob("kvplane-*.tar.gz")
        made.append(archive)
    assert made[0].read_bytes() == made[1].read_bytes()
    digest, name = made[0].with_name(made[0].name + ".sha256").read_text().split()
    assert (name, digest) == (made[0].name, hashlib.sha256(made[0].read_bytes()).hexdigest())

    number = version(binary).split()[1]
    assert re.fullmatch(rf"kvplane-{re.escape(number)}-\w+-[\w-]+\.tar\.gz", name)
    with tarfile.open(made[0]) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path)
    assert {(member.uid, member.gid) for member in members} == {(0, 0)}
    assert len({member.mtime for member in members}) == 1
    assert {member.mode for member in members if member.isfile()} == {0o644, 0o755}
    assert [member.name for member in members] == sorted((member.name for member in members), key=lambda name: name.split("/"))
    unpacked = tmp_path / name.removesuffix(".tar.gz")
    assert FILES <= files(unpacked)
    assert version(unpacked / "bin/kvplane") == version(binary)


def test_the_image_would_start(installed):
    """No container is built here; what its description names is there, and its commands are commands."""
    text = (ROOT / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    for words in re.findall(r"^(?:CMD|HEALTHCHECK .*CMD) (\[.*\])$", text, re.MULTILINE):
        command = [word for word in json.loads(words) if word != "/usr/bin/kvplane"]
        done = run(installed / "bin/kvplane", *command, "--help")
        assert done.returncode == 0, (command, done.stderr)
    if shutil.which("ldd"):
        needed = subprocess.run(["ldd", installed / "bin/kvplane"], capture_output=True, text=True, check=True).stdout
        libraries = set(re.findall(r"^\s*(?:/\S*/)?([a-z_+-]+)\S* ", needed, re.MULTILINE))
        # glibc's own and libgcc's, which every Debian has.
        assert libraries <= {"linux-vdso", "ld-linux-x", "ld-linux-aarch", "libc", "libm", "libgcc_s"}, needed
