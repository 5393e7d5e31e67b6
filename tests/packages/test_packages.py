"""What `make dist`, `make deb` and `make image` make, installed and run in a root that has nothing else."""

import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.plane import find_binary, free_ports
from harness.wait import eventually

ROOT = Path(__file__).resolve().parents[2]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Every form, from the program that the tests have built."""
    out = tmp_path_factory.mktemp("packages")
    environment = {**os.environ, "BINARY": str(find_binary()), "SOURCE_DATE_EPOCH": "1700000000"}
    forms = {"archive": Path(run("scripts/dist.sh", "dev", out, cwd=ROOT, env=environment))}
    run("scripts/stage.sh", "dev", out / "staged", "/usr", cwd=ROOT, env=environment)
    forms["image"] = Path(run("scripts/oci-image.py", out / "staged", out / "kvplane.oci.tar", cwd=ROOT, env=environment))
    if shutil.which("dpkg-deb"):
        forms["deb"] = Path(run("scripts/deb.sh", "dev", out, cwd=ROOT, env=environment))
    return forms


def suite():
    if "KVPLANE_DEBIAN" in os.environ:
        return os.environ["KVPLANE_DEBIAN"]
    release = Path("/etc/os-release")
    found = re.search(r"^VERSION_CODENAME=(\w+)", release.read_text() if release.exists() else "", re.MULTILINE)
    return found[1] if found else "none"


@pytest.fixture
def debian(tmp_path):
    """A minimal Debian with nothing of kvplane's."""
    made = ROOT / ".tools" / f"debian-{suite()}"
    if os.geteuid() != 0 or not made.is_dir():
        pytest.skip("scripts/debian-root.sh could not make a clean Debian")
    root = tmp_path / "debian"
    run("cp", "--archive", "--reflink=auto", made, root)
    return root


@contextmanager
def serving(root, program, *words):
    """`kvplane serve` inside a root; gives its HTTP address once it answers."""
    http, grpc = free_ports(2)
    served = ["chroot", root, program, "serve", *words, "--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
    with open(root / "serve.log", "wb") as log:
        process = subprocess.Popen([str(word) for word in served], stdout=log, stderr=log)
    try:
        asked = ["chroot", str(root), str(program), "ready", "--server", f"http://127.0.0.1:{http}"]
        eventually(lambda: subprocess.run(asked, capture_output=True, check=False).returncode == 0, lambda: (root / "serve.log").read_text(), 60.0)
        yield f"http://127.0.0.1:{http}"
    finally:
        process.terminate()
        assert process.wait(60) == 0, (root / "serve.log").read_text()


def test_the_package_on_a_clean_debian(made, debian):
    if "deb" not in made:
        pytest.skip("dpkg-deb is missing")
    shutil.copy(made["deb"], debian / "kvplane.deb")
    # With its dependencies checked, by the dpkg that is there.
    run("chroot", debian, "dpkg", "--install", "/kvplane.deb")
    assert run("chroot", debian, "dpkg-query", "--show", "--showformat=${Status}", "kvplane") == "install ok installed"
    with serving(debian, "/usr/bin/kvplane", "--config", "/etc/kvplane/kvplane.toml") as server:
        status = json.loads(run("chroot", debian, "/usr/bin/kvplane", "status", "--server", server, "-o", "json"))
        assert status["streams"] == []
    summary = json.loads(run("chroot", debian, "/usr/bin/kvplane", "demo", "--seconds", "1", "-o", "json"))
    assert summary["false_hits"] == 0
    # What somebody has edited stays, until all of it is to go.
    run("chroot", debian, "dpkg", "--remove", "kvplane")
    assert (debian / "etc/kvplane/kvplane.toml").is_file() and not (debian / "usr/bin/kvplane").exists()
    run("chroot", debian, "dpkg", "--purge", "kvplane")
    assert not (debian / "etc/kvplane").exists()


def test_install_sh_on_a_clean_debian(made, debian):
    """With the shell and the tools of a minimal Debian: dash, no curl."""
    inside = debian / "root"
    for file in (made["archive"], made["archive"].with_name(made["archive"].name + ".sha256"), ROOT / "install.sh"):
        shutil.copy(file, inside)
    said = run("chroot", debian, "sh", "/root/install.sh", f"/root/{made['archive'].name}")
    assert "/usr/local/bin/kvplane" in said
    with serving(debian, "/usr/local/bin/kvplane", "--config", "/usr/local/share/kvplane/kvplane.toml"):
        pass
    again = subprocess.run(["chroot", str(debian), "sh", "/root/install.sh", "https://plane.example/kvplane.tar.gz"], capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "curl or wget is needed" in again.stderr, again


def unpacked(image, directory):
    """The root of an image: every layer, each blob compared with its name."""
    with tarfile.open(image) as archive:
        def blob(digest):
            data = archive.extractfile("blobs/" + digest.replace(":", "/")).read()
            assert digest == "sha256:" + hashlib.sha256(data).hexdigest()
            return data

        index = json.load(archive.extractfile("index.json"))
        manifest = json.loads(blob(index["manifests"][0]["digest"]))
        config = json.loads(blob(manifest["config"]["digest"]))
        for layer in manifest["layers"]:
            path = directory / "layer.tar.gz"
            path.write_bytes(blob(layer["digest"]))
            with tarfile.open(path) as files:
                files.extractall(directory / "root", filter="tar")
    return directory / "root", config["config"]


@NEEDS_ROOT
def test_the_image_runs_in_its_own_root(made, tmp_path):
    root, config = unpacked(made["image"], tmp_path)
    assert config["Entrypoint"] == ["/usr/bin/kvplane"] and config["User"] == "65532:65532"
    assert run("chroot", "--userspec=65532:65532", root, *config["Entrypoint"], "--version").startswith("kvplane ")
    shown = run("chroot", "--userspec=65532:65532", root, "/usr/bin/kvplane", "serve", "--config", "/etc/kvplane/kvplane.toml", "--dump-config")
    assert "listen" in shown
    assert not (root / "bin/sh").exists()
    with serving(root, "/usr/bin/kvplane", "--config", "/etc/kvplane/kvplane.toml"):
        pass


@NEEDS_ROOT
def test_the_package_installs_program_and_unit(made, tmp_path):
    if "deb" not in made:
        pytest.skip("dpkg-deb is missing")
    # A root with the libraries alone.
    root, _ = unpacked(made["image"], tmp_path)
    (root / "usr/bin/kvplane").unlink()
    for part in ("updates", "info", "triggers"):
        (root / "var/lib/dpkg" / part).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    run("dpkg", f"--root={root}", "--force-depends", "--force-not-root", "--install", made["deb"])
    assert run("chroot", root, "/usr/bin/kvplane", "--version").startswith("kvplane ")
    unit = (root / "usr/lib/systemd/system/kvplane.service").read_text()
    assert "ExecStart=/usr/bin/kvplane serve --config /etc/kvplane/kvplane.toml" in unit
    assert (root / "etc/kvplane/kvplane.toml").is_file()
    run("dpkg", f"--root={root}", "--force-not-root", "--purge", "kvplane")
    assert not (root / "usr/bin/kvplane").exists()
    assert re.search(r"^Depends: libc6 \(>= 2\.\d+\)", run("dpkg-deb", "--info", made["deb"]).replace("\n ", "\n"), re.MULTILINE)


def test_install_sh_installs_what_was_checked_and_says_so(made, tmp_path):
    prefix = tmp_path / "opt"
    said = run(ROOT / "install.sh", made["archive"], "--prefix", prefix)
    assert f"{prefix}/bin/kvplane" in said and "next: kvplane demo" in said
    assert run(prefix / "bin/kvplane", "--version").startswith("kvplane ")
    assert f"ExecStart={prefix}/bin/kvplane" in (prefix / "lib/systemd/system/kvplane.service").read_text()
    for line in (prefix / "share/kvplane/manifest").read_text().splitlines():
        assert (prefix / line).is_file(), line


def test_install_sh_takes_a_url(made, tmp_path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=made["archive"].parent)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{made['archive'].name}"
        environment = {**os.environ, "no_proxy": "127.0.0.1"}
        run(ROOT / "install.sh", url, "--prefix", tmp_path / "opt", env=environment)
        assert run(tmp_path / "opt/bin/kvplane", "--version").startswith("kvplane ")
        missing = subprocess.run([ROOT / "install.sh", f"{url}x", "--prefix", tmp_path / "no"], capture_output=True, text=True, check=False, env=environment)
        assert missing.returncode == 1 and "cannot download" in missing.stderr, missing
        server.shutdown()


@pytest.mark.parametrize("words, reason", [
    ((), "give an archive"),
    (("nowhere.tar.gz",), "no such file"),
    (("--prefix", "relative", "x.tar.gz"), "absolute path"),
    (("--colour",), "unknown option"),
])
def test_install_sh_names_a_mistake(words, reason):
    done = subprocess.run([ROOT / "install.sh", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and reason in done.stderr, done


def test_install_sh_refuses_what_does_not_match_its_checksum(made, tmp_path):
    done = subprocess.run([ROOT / "install.sh", made["archive"], "--sha256", "0" * 64, "--prefix", tmp_path / "opt"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "checksum mismatch" in done.stderr, done
    assert not (tmp_path / "opt").exists()


def test_the_oldest_glibc_is_read_from_the_program(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.28\0GLIBC_2.9\0GLIBC_PRIVATE\0")
    assert run(ROOT / "scripts/glibc.sh", program) == "2.28"


@NEEDS_ROOT
@pytest.mark.skipif("KVPLANE_OLD_LIBC" not in os.environ, reason="KVPLANE_OLD_LIBC names no directory with an older libc6 and libgcc-s1, as .deb")
def test_a_portable_program_runs_with_an_older_glibc(tmp_path):
    """For releases: KVPLANE_BIN is what scripts/portable.sh has built."""
    for package in Path(os.environ["KVPLANE_OLD_LIBC"]).glob("lib*.deb"):
        run("dpkg-deb", "--extract", package, tmp_path)
    shutil.copy(find_binary(), tmp_path / "kvplane")
    shutil.copy(ROOT / "deploy/kvplane.toml", tmp_path / "kvplane.toml")
    assert run("chroot", tmp_path, "/kvplane", "--version").startswith("kvplane ")
    assert "listen" in run("chroot", tmp_path, "/kvplane", "serve", "--config", "/kvplane.toml", "--dump-config")
    summary = json.loads(run("chroot", tmp_path, "/kvplane", "demo", "--seconds", "1", "-o", "json"))
    assert summary["false_hits"] == 0
