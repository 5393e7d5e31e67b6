#!/usr/bin/env python3
"""Writes an OCI image archive without a daemon: scripts/oci-image.py STAGED FILE. STAGED is a directory that `scripts/stage.sh` has laid out for /usr.

The image has the program, the shared libraries that it needs, its configuration and a user, and nothing else: no shell, no package
manager. `skopeo copy oci-archive:FILE docker-daemon:kvplane:VERSION` or `podman load -i FILE` take it. The same files make the same
bytes. Needs Python's standard library and `ldd`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
USER = "65532:65532"
PASSWD = "root:x:0:0:root:/root:/sbin/nologin\nkvplane:x:65532:65532:kvplane:/nonexistent:/sbin/nologin\n"
GROUP = "root:x:0:\nkvplane:x:65532:\n"


def libraries(program):
    """The shared libraries of a program, and the loader, where the loader looks for them."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return sorted({path for path in re.findall(r"(/\S+) \(0x", listed)})


def add(archive, name, data, mode, epoch):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), mode, epoch
    archive.addfile(entry, io.BytesIO(data))


def layer(staged, epoch):
    """One layer, as a tar."""
    program = staged / "bin/kvplane"
    files = {"usr/bin/kvplane": (program.read_bytes(), 0o755)}
    for library in libraries(program):
        files[library.lstrip("/")] = (Path(library).resolve().read_bytes(), 0o755)
    files["etc/kvplane/kvplane.toml"] = ((staged / "share/kvplane/kvplane.toml").read_bytes(), 0o644)
    files["etc/passwd"], files["etc/group"] = (PASSWD.encode(), 0o644), (GROUP.encode(), 0o644)
    # Names are looked up in /etc/hosts and by DNS.
    files["etc/nsswitch.conf"] = (b"hosts: files dns\n", 0o644)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        directories = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."} | {"tmp"}
        for name in sorted(directories):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755, epoch
            archive.addfile(entry)
        for name, (data, mode) in sorted(files.items()):
            add(archive, name, data, mode, epoch)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("staged", type=Path)
    words.add_argument("file", type=Path)
    words.add_argument("--tag", default="latest")
    given = words.parse_args()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
    plain = layer(given.staged, epoch)
    packed = gzip.compress(plain, 6, mtime=0)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "User": USER,
            "ExposedPorts": {"8090/tcp": {}, "50090/tcp": {}},
            "Entrypoint": ["/usr/bin/kvplane"],
            "Cmd": ["serve", "--config", "/etc/kvplane/kvplane.toml", "--log-format", "json"],
            "Labels": {"org.opencontainers.image.title": "kvplane", "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
    }
    config = json.dumps(config, sort_keys=True).encode()
    described = lambda kind, data: {"mediaType": kind, "digest": digest(data), "size": len(data)}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    manifest = json.dumps(manifest, sort_keys=True).encode()
    reference = described("application/vnd.oci.image.manifest.v1+json", manifest)
    reference["annotations"] = {"org.opencontainers.image.ref.name": given.tag}
    index = json.dumps({"schemaVersion": 2, "manifests": [reference]}, sort_keys=True).encode()
    with tarfile.open(given.file, "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644, epoch)
        add(archive, "index.json", index, 0o644, epoch)
        for blob in sorted([config, manifest, packed], key=digest):
            add(archive, "blobs/" + digest(blob).replace(":", "/"), blob, 0o644, epoch)
    print(given.file)


if __name__ == "__main__":
    main()
