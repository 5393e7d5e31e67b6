#!/usr/bin/env python3
"""Checks alert rules and the Grafana dashboard: every metric that they name has a row in docs/reference/metrics.md, every alert has a
paragraph in docs/guide/alerts.md and every paragraph an alert; promtool, where it is installed, checks and tests the rules."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy/prometheus/alerts.yaml"
TESTS = ROOT / "deploy/prometheus/alerts_test.yaml"
BOARD = ROOT / "deploy/grafana/kvplane.json"
METRIC = re.compile(r"\bkvplane_[a-z_]+")


def main() -> int:
    rows = set(re.findall(r"^\| `(kvplane_[a-z_]+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    errors = []
    rules = RULES.read_text()
    board = json.loads(BOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [row["expr"] for row in board["annotations"]["list"]]
    asked += [row["definition"] for row in board["templating"]["list"] if "definition" in row]
    for file, text in [(RULES, rules), (BOARD, "\n".join(asked))]:
        errors += [f"{file.name}: {name} is no metric of docs/reference/metrics.md" for name in sorted(set(METRIC.findall(text)) - rows)]
    alerts = re.findall(r"^ *- alert: (\w+)$", rules, re.MULTILINE)
    paragraphs = re.findall(r"^## (\w+)$", (ROOT / "docs/guide/alerts.md").read_text(), re.MULTILINE)
    errors += [f"docs/guide/alerts.md: {name} has no paragraph" for name in alerts if name not in paragraphs]
    errors += [f"{RULES.name}: {name} is no alert" for name in paragraphs if name not in alerts]
    for line in errors:
        print(line, file=sys.stderr)
    if errors:
        return 1
    promtool = shutil.which("promtool")
    if not promtool:
        print("check-alerts: promtool is not installed (Debian: prometheus), rules are not run", file=sys.stderr)
        return 0
    for command in (["check", "rules", RULES.name], ["test", "rules", TESTS.name]):
        done = subprocess.run([promtool, *command], cwd=RULES.parent, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
