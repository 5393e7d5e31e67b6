"""What the documentation says of the configuration, asked of the binary."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
from harness.plane import ROOT, clean_environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def examples():
    """Every block of TOML, but for those that begin with the name of somebody else's file."""
    for page in PAGES:
        for at, text in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            if not text.startswith("# Cargo.toml"):
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}-{at}")


def dump(binary, text, directory):
    file = directory / "kvplane.toml"
    file.write_text(text)
    words = [str(binary), "serve", "--config", str(file), "--dump-config"]
    return subprocess.run(words, capture_output=True, text=True, env=clean_environment(), timeout=30, check=False)


@pytest.mark.parametrize("text", list(examples()))
def test_examples_are_configurations(binary, tmp_path, text):
    done = dump(binary, text, tmp_path)
    assert done.returncode == 0, done.stderr


def test_everything_with_defaults_is_what_the_binary_has(binary, tmp_path):
    """What the page comments out is not there by default; the one engine is an example."""
    page = (ROOT / "docs/reference/config.md").read_text()
    text = re.search(r"## Everything, with defaults\n+```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    defaults = tomllib.loads(dump(binary, "", tmp_path).stdout)
    written = tomllib.loads(text)
    del written["engine"]
    for section, keys in written.items():
        there = {key: value for key, value in defaults[section].items() if not isinstance(value, list) or value}
        assert {key: round(value, 6) if isinstance(value, float) else value for key, value in there.items()} == keys, section


def test_commented_keys_exist_too(binary, tmp_path):
    page = (ROOT / "docs/reference/config.md").read_text()
    text = re.search(r"## Everything, with defaults\n+```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1]
    done = dump(binary, re.sub(r"^# (?=[\[a-z])", "", text, flags=re.MULTILINE), tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_tables_of_keys_are_current(binary):
    schema = subprocess.run([str(binary), "config", "schema"], capture_output=True, check=True).stdout
    script = ROOT / "scripts/config-page.py"
    checked = subprocess.run([sys.executable, script, "--check"], input=schema, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()


def test_a_book_has_no_link_that_leaves_it():
    """What mdBook hands over and takes back, in the words of its versions 0.4 and 0.5."""
    page = "[the rules](../../deploy/alerts.yaml), [trust](trust.md#exact), [top](#top), ![one](../images/a.png), <https://example.org>, [`a`](../../a.rs), [hashes](../internals/hashing.md)"
    wanted = "the rules, [trust](trust.md#exact), [top](#top), ![one](../images/a.png), <https://example.org>, `a`, hashes"
    for parts in ("sections", "items"):
        below = {"Chapter": {"path": "guide/b.md", "content": page, "sub_items": []}}
        book = {parts: [{"Chapter": {"path": "guide/a.md", "content": page, "sub_items": [below]}}, "Separator"]}
        asked = [sys.executable, ROOT / "scripts/book-links.py"]
        done = subprocess.run(asked, input=json.dumps([{}, book]), capture_output=True, text=True, check=True)
        (whole, _) = json.loads(done.stdout)[parts]
        (inner,) = whole["Chapter"]["sub_items"]
        assert (whole["Chapter"]["content"], inner["Chapter"]["content"]) == (wanted, wanted)
    assert subprocess.run([*asked, "supports", "html"], check=False).returncode == 0
