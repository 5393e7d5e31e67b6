"""What is installed and what is shipped: the program, and everything that belongs to it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile

import pytest

from harness.plane import ROOT, clean_environment, run

FILES = {
    "bin/kvplane",
    "lib/systemd/system/kvplane.service",
    "share/bash-completion/completions/kvplane",
    "share/doc/kvplane/CHANGELOG.md",
    "share/doc/kvplane/LICENSE",
    "share/doc/kvplane/README.md",
    "share/doc/kvplane/docs/guide/alerts.md",
    "share/fish/vendor_completions.d/kvplane.fish",
    "share/kvplane/grafana/kvplane.json",
    "share/kvplane/kvplane.toml",
    "share/kvplane/manifest",
    "share/kvplane/prometheus/alerts.yaml",
    "share/zsh/site-functions/_kvplane",
    "share/man/man1/kvplane.1",
}


@pytest.fixture(scope="module")
def commands(binary):
    """Those that `kvplane --help` lists."""
    listed = run(binary, "--help").stdout.partition("\nCommands:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert {"serve", "doctor", "completions"} <= set(found), listed
    return [command for command in found if command != "help"]


def make(binary, *words):
    """make, with a program that is there already, and without the flags of the make that runs the tests."""
    kept = {name: value for name, value in clean_environment().items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(["make", "--no-print-directory", "-C", ROOT, f"BINARY={binary}", *words], capture_output=True, text=True, env=kept)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    # libzmq aborts without it, and only then.
    assert unit.index("@resources") < unit.index("SystemCallFilter=sched_setscheduler")


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
    assert not (pages / "kvplane-man.1").exists(), "it is for those who package"
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
        # glibc's own, and those of the one package that the image installs.
        assert libraries <= {"linux-vdso", "ld-linux-x", "ld-linux-aarch", "libc", "libm", "libgcc_s", "libstdc++"}, needed
