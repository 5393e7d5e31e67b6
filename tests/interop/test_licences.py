"""scripts/check-licences.py refuses what deny.toml refuses, each for its own reason."""

import json
import subprocess
import sys

from harness.plane import ROOT

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"
CONFIG = """
[licenses]
allow = ["MIT", "Apache-2.0", "ISC", "Apache-2.0 WITH LLVM-exception"]
exceptions = [{ allow = ["CDLA-Permissive-2.0"], crate = "roots" }]
[bans]
multiple-versions = "deny"
deny = [{ crate = "openssl", reason = "TLS is rustls" }]
skip = [{ crate = "old:^0.1" }, { crate = "exact@2.0.0" }]
[sources]
allow-registry = ["https://github.com/rust-lang/crates.io-index"]
"""


def check(tmp_path, *packages):
    entries = []
    for name, version, licence, *source in packages:
        entry = {"name": name, "version": version, "license": licence, "source": source[0] if source else CRATES_IO}
        entries.append({**entry, "id": f"{name}@{version}"})
    # What is in the lock file and not in the graph is not looked at.
    unused = {"id": "unused", "name": "unused", "version": "1.0.0", "license": "GPL-3.0", "source": CRATES_IO}
    metadata = {"packages": [*entries, unused], "resolve": {"nodes": [{"id": entry["id"]} for entry in entries]}}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    (tmp_path / "deny.toml").write_text(CONFIG)
    command = [sys.executable, ROOT / "scripts/check-licences.py"]
    arguments = ["--metadata", tmp_path / "metadata.json", "--config", tmp_path / "deny.toml"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stderr if done.returncode else ""


def test_what_is_allowed_passes(tmp_path):
    assert not check(
        tmp_path,
        ("a", "1.0.0", "MIT OR GPL-3.0"),
        ("b", "1.0.0", "MIT/Apache-2.0"),
        ("c", "1.0.0", "ISC AND (Apache-2.0 OR GPL-3.0)"),
        ("d", "1.0.0", "Apache-2.0 WITH LLVM-exception"),
        ("roots", "1.0.0", "CDLA-Permissive-2.0"),
        ("old", "0.1.7", "MIT"),
        ("old", "1.0.0", "MIT"),
        ("exact", "2.0.0+spec", "MIT"),
        ("exact", "2.0.1", "MIT"),
        ("own", "0.1.0", "Apache-2.0", None),
    )


def test_what_is_not_is_named(tmp_path):
    for package, words in [
        (("a", "1.0.0", "GPL-3.0"), "a 1.0.0: licence 'GPL-3.0' is not allowed"),
        (("a", "1.0.0", "MIT AND GPL-3.0"), "is not allowed"),
        (("a", "1.0.0", "MIT AND (GPL-3.0 OR LGPL-3.0)"), "is not allowed"),
        (("a", "1.0.0", "CDLA-Permissive-2.0"), "is not allowed"),
        (("a", "1.0.0", None), "no licence"),
        (("a", "1.0.0", "MIT AND"), "cannot be read: breaks off"),
        (("a", "1.0.0", "(MIT"), "cannot be read"),
        (("openssl", "0.10.0", "MIT"), "banned: TLS is rustls"),
        (("a", "1.0.0", "MIT", "git+https://example.com/a"), "comes from git+https://example.com/a"),
    ]:
        assert words in check(tmp_path, package), package
    assert "old: several versions: 1.0.0, 2.0.0" in check(tmp_path, ("old", "1.0.0", "MIT"), ("old", "2.0.0", "MIT"))
