#!/usr/bin/env python3
"""Checks the alert rules and the Grafana dashboard: scripts/check-alerts.py PROMTOOL.

- whatever they name (metrics, labels, values of labels) is in the reference;
- every rule has its paragraph in docs/reference/alerts.md, with its severity, delay and expression, and every paragraph a rule;
- every rule is shown by a test to be silent and to fire, over series with the labels that they really have;
- promtool reads every expression, and the tests pass.

Needs PyYAML, which .venv has.
"""

import json
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy/prometheus/alerts.yaml"
TESTS = ROOT / "deploy/prometheus/alerts_test.yaml"
BOARD = ROOT / "deploy/grafana/kvplane.json"
RUNBOOK = "docs/reference/alerts.md"

# Prometheus gives them to every series.
SCRAPED = {"job", "instance"}
SELECTOR = re.compile(r"\b(up|(?:kvplane|inferencecache)_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
# What Grafana puts in before it asks.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$engine": ".*", "$model": ".*"}


def main() -> int:
    promtool = sys.argv[1]
    series = described()
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    questions = asked(json.loads(BOARD.read_text()))
    errors = [f"{BOARD.name}: {question}: counts engines of all planes: select an instance" for question in questions if is_of_all_planes(question)]
    for rule in rules:
        errors += [f"{RULES.name}: {rule['alert']}: {error}" for error in check_names(rule["expr"], series)]
    for question in questions:
        errors += [f"{BOARD.name}: {question}: {error}" for error in check_names(question, series)]
    errors += check_paragraphs(rules)
    errors += check_tests(rules, series)
    errors += ask_promtool(promtool, questions)
    for line in errors:
        print(line, file=sys.stderr)
    if not errors:
        print(f"{len(rules)} rules and {len(questions)} questions of the dashboard are fine")
    return 1 if errors else 0


def described() -> dict[str, set[str]]:
    """The labels of every metric, from the tables of the reference."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE)
    series: dict[str, set[str]] = {"up": set()}
    for name, kind, labels in rows:
        own = set(re.findall(r"`(\w+)`", labels))
        parts = {"_bucket": {"le"}, "_count": set(), "_sum": set()} if kind == "histogram" else {"": set()}
        series |= {name + ending: own | more for ending, more in parts.items()}
    return series


def asked(board: dict) -> list[str]:
    """Every expression of the dashboard, with something in the place of its variables."""
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    found += [row["expr"] for row in board["annotations"]["list"]]
    for row in board["templating"]["list"]:
        # label_values(SERIES, LABEL): the series that have the label.
        if match := re.fullmatch(r"label_values\((.*), (\w+)\)", row.get("definition", "")):
            found.append(f"group by ({match[2]}) ({match[1]})")
    for variable, value in VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def is_of_all_planes(question: str) -> bool:
    """Whether what planes know of the same engines would be added up. Which planes there are is asked of all."""
    selectors = [matchers or "" for name, matchers in SELECTOR.findall(question) if name != "kvplane_build_info"]
    return any('instance=~' not in matchers for matchers in selectors)


@cache
def told() -> set[str]:
    """Words that the documentation has as they are in values of labels."""
    return set(re.findall(r"`(\w+)`", "".join(page.read_text() for page in (ROOT / "docs").glob("*/*.md"))))


def check_names(expression: str, series: dict[str, set[str]]) -> list[str]:
    errors, labels = [], set()
    for name, matchers in SELECTOR.findall(expression):
        if name not in series:
            errors.append(f"{name} is no metric of docs/reference/metrics.md")
            continue
        labels |= series[name] | SCRAPED
        for label, value in MATCHER.findall(matchers):
            if label not in series[name] | SCRAPED:
                errors.append(f"{name} has no label {label}")
            if label not in SCRAPED and value != ".*":
                errors += [f"{label}: no page tells of {word}" for word in value.split("|") if word not in told()]
    for group in GROUPED.findall(expression):
        errors += [f"nothing in it has the label {label}" for label in re.findall(r"\w+", group) if label not in labels]
    return errors


def check_paragraphs(rules: list[dict]) -> list[str]:
    """A paragraph begins with its rule: severity, delay and expression."""
    page = (ROOT / RUNBOOK).read_text()
    paragraphs = dict(re.findall(r"^## (\w+)\n\n(.*)$", page, re.MULTILINE))
    errors = [f"{RULES.name}: {name} is no alert" for name in paragraphs.keys() - {rule["alert"] for rule in rules}]
    for rule in rules:
        name, delay = rule["alert"], f", after {rule['for']}" if "for" in rule else ""
        begins = f"`{rule['labels']['severity']}`{delay}. `{' '.join(rule['expr'].split())}`"
        if paragraphs.get(name) != begins:
            errors.append(f"{RUNBOOK}: the paragraph of {name} does not begin with: {begins}")
        if rule["annotations"].get("runbook_url") != f"{RUNBOOK}#{name.lower()}":
            errors.append(f"{RULES.name}: {name}: its runbook_url is not {RUNBOOK}#{name.lower()}")
    return errors


def check_tests(rules: list[dict], series: dict[str, set[str]]) -> list[str]:
    errors, silent, fires = [], set(), set()
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for given in test["input_series"]:
            name, matchers = SELECTOR.fullmatch(given["series"]).groups()
            labels = {label for label, _ in MATCHER.findall(matchers or "")}
            if labels != series.get(name, set()) | SCRAPED:
                errors.append(f"{TESTS.name}: {given['series']} has not the labels that it really has")
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else silent).add(case["alertname"])
    for rule in rules:
        errors += [f"{TESTS.name}: {rule['alert']} is never {what}" for what, seen in (("silent", silent), ("fired", fires)) if rule["alert"] not in seen]
    return errors


def ask_promtool(promtool: str, questions: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        # A question is read where a rule records it.
        recorded = [{"record": f"question:{number}", "expr": question} for number, question in enumerate(questions)]
        board = Path(directory) / "board.yaml"
        board.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]}))
        errors = []
        for words in (["check", "rules", str(RULES)], ["check", "rules", str(board)], ["test", "rules", str(TESTS)]):
            done = subprocess.run([promtool, *words], capture_output=True, text=True)
            if done.returncode:
                errors.append(f"promtool {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return errors


if __name__ == "__main__":
    sys.exit(main())
