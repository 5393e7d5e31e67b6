"""`/metrics` against its reference, family by family, and as Prometheus's own tool reads it."""

import re
import subprocess

import grpc
import pytest

from harness.inference_cache.client import Client
from harness.plane import ROOT, http, run
from harness.wait import eventually
from harness.wire import NEWEST

ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')
# Nobody is turned away at a socket of events. Without TLS there is nothing to say of handshakes, without a [[model]] nothing of text, and without a picker, a gateway or
# a [[discover]] nothing of one.
ABSENT = {
    "kvplane_discovery_changes_total",
    "kvplane_discovery_current",
    "kvplane_discovery_engines",
    "kvplane_discovery_failures_total",
    "kvplane_discovery_lists_total",
    "kvplane_discovery_pods",
    "kvplane_discovery_refused_pods_total",
    "kvplane_event_sockets_refused_total",
    "kvplane_gateway_decisions_total",
    "kvplane_gateway_ended_total",
    "kvplane_gateway_endpoints",
    "kvplane_gateway_forwarded_ids_total",
    "kvplane_gateway_held_bytes",
    "kvplane_gateway_in_flight",
    "kvplane_gateway_limited_total",
    "kvplane_gateway_prefills_total",
    "kvplane_gateway_queue_seconds",
    "kvplane_gateway_refused_total",
    "kvplane_gateway_requests_total",
    "kvplane_gateway_retries_refused_total",
    "kvplane_gateway_retries_total",
    "kvplane_gateway_time_per_output_token_seconds",
    "kvplane_gateway_time_to_first_token_seconds",
    "kvplane_gateway_traces_total",
    "kvplane_gateway_withdrawn_ids_total",
    "kvplane_gateway_without_tokens_total",
    "kvplane_picker_ended_total",
    "kvplane_picker_endpoints",
    "kvplane_picker_held_bytes",
    "kvplane_picker_requests_total",
    "kvplane_picker_rewritten_total",
    "kvplane_picker_streams",
    "kvplane_picker_without_tokens_total",
    "kvplane_picker_wrong_endpoints_total",
    "kvplane_tls_handshakes_failed_total",
    "kvplane_prompt_comparisons_total",
    "kvplane_prompt_contradictions_total",
    "kvplane_prompt_parity",
    "kvplane_prompt_tokenize_seconds_total",
    "kvplane_prompt_tokens_total",
    "kvplane_prompts_refused_total",
    "kvplane_prompts_tokenized_total",
    "kvplane_prompts_without_tokens_total",
}


@pytest.fixture(scope="module")
def reference():
    """Type, labels and description of every metric, by the name of its series."""
    rows = ROW.findall((ROOT / "docs/reference/metrics.md").read_text())
    assert len(rows) > 100
    return {name: (kind, set(re.findall(r"`(\w+)`", labels)), help.strip()) for name, kind, labels, help in rows}


@pytest.fixture
def page(pb, plane, sim, engine, tmp_path):
    """The page of a plane to which everything has happened that makes a series: several engines, one of them unreachable, a link,
    a front, a report, an operation, a lookup, and an event that cannot be read."""
    other = plane()
    good, bad = sim("--grpc", "127.0.0.1:0"), engine(NEWEST, synchronised=True)
    config = tmp_path / "kvplane.toml"
    config.write_text(f'''
        [journal]
        dir = "{tmp_path / "journal"}"
        [indexer]
        metrics = true
        [[report]]
        server = "{other.grpc}"
        [[engine]]
        id = "fronted"
        kind = "vllm"
        model = "sim"
        events = "{good.events[0]}"
        replay = "{good.replay[0]}"
        http = "{good.http}"
        grpc = "http://{good.grpc}"
        front = "127.0.0.1:0"
        [[engine]]
        id = "bad"
        kind = "vllm"
        events = "{bad.events}"
        replay = "{bad.replay}"
        [[engine]]
        id = "gone"
        kind = "vllm"
        events = "tcp://127.0.0.1:1"
        [[engine]]
        id = "linked"
        kind = "kvplane"
        grpc = "http://{other.grpc}"
    ''')
    served = plane(args=["--config", config])
    for one in ("fronted", "bad"):
        served.wait_live(one)
    good.complete(list(range(64)))
    bad.publish(["BlockStored", "no hashes"])
    served.wait(lambda s: s["counters"]["rejected"], "an event that was rejected", "bad")
    served.wait(lambda s: s["trouble"], "trouble", "gone")
    assert served.command("flush", "--engine", "fronted", "--nudge").returncode == 0
    client = Client(pb, served.grpc)
    client.chain(list(range(64)))
    client.close()

    def complete():
        page = http("GET", f"{served.http}/metrics")[1]
        wanted = ["kvplane_link_up{", "kvplane_hints_withheld_blocks_total{", "kvplane_source_troubles_total{", "kvplane_operations_total{"]
        return page if all(name in page for name in wanted) else None

    return eventually(complete, "a page with everything on it")


def families(page):
    """Families in the order of the page: name of the series, type, description, labels of each series."""
    found, name = {}, None
    lines = page.splitlines()
    assert lines.pop() == "# EOF"
    for line in lines:
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            family = found.setdefault(name, {"labels": []})
            assert word not in family, f"{name} has two lines {word}"
            family[word] = rest
        else:
            sample, labels, _ = SAMPLE.fullmatch(line).groups()
            endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}[found[name]["TYPE"]]
            assert sample in [name + ending for ending in endings], f"{line} stands under {name}"
            found[name]["labels"].append(set(LABEL.findall(labels or "")) - {"le"})
    return found


def test_every_family_is_as_the_reference_says(page, reference):
    seen = set()
    for name, family in families(page).items():
        series = f"{name}_total" if family["TYPE"] == "counter" else name
        assert series in reference, f"{series} has no row"
        kind, labels, help = reference[series]
        assert (family["TYPE"], family["HELP"]) == (kind, help), series
        assert all(found == labels for found in family["labels"]), (series, labels, family["labels"])
        unit = name.rsplit("_", 1)[1]
        assert family.get("UNIT") == (unit if unit in ("bytes", "seconds") else None), series
        seen.add(series)
    assert reference.keys() - seen == ABSENT


def test_promtool_has_no_complaint(page):
    """It reads the text format that came before OpenMetrics, where a counter's family has its ending too."""
    counters = {name for name, family in families(page).items() if family["TYPE"] == "counter"}
    lines = []
    for line in page.splitlines():
        word = line.split(" ")
        if line.startswith("# ") and word[1] not in ("HELP", "TYPE"):
            continue
        if line.startswith("# ") and word[2] in counters:
            word[2] += "_total"
        lines.append(" ".join(word))
    tool = subprocess.run([ROOT / "scripts/promtool.sh"], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run([tool, "check", "metrics"], input="\n".join(lines) + "\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_questions_are_counted_by_how_they_ended(stubs, plane, sim):
    engine = sim()
    served = plane(engine, model="sim")
    served.wait_live()
    engine.complete(list(range(64)))
    served.wait(lambda s: s["blocks"]["device"], "blocks")
    url = f"{served.http}/v1/query"
    for question in ({"token_ids": list(range(64))}, {"token_ids": [7] * 64}, {"tokens": []}):
        http("POST", url, {"model": "sim", **question})
    with grpc.insecure_channel(served.grpc) as channel:
        assert stubs.PlaneStub(channel).Query(stubs.QueryRequest(model="sim", token_ids=range(64)), timeout=10).best
    page = http("GET", f"{served.http}/metrics")[1]
    counted = dict(re.findall(r'^kvplane_queries_total\{outcome="(\w+)"\} (\d+)$', page, re.MULTILINE))
    assert counted == {"hit": "2", "miss": "1", "refused": "1"}
    assert re.search(r"^kvplane_query_duration_seconds_count 4$", page, re.MULTILINE)
    version, commit = re.fullmatch(r"kvplane (\S+) \((\S+)\)\n", run(served.binary, "--version").stdout).groups()
    assert f'kvplane_build_info{{version="{version}",commit="{commit}"}} 1' in page
