"""The Helm chart and the plain manifests: rendered by helm, checked against Kubernetes' own schemas, and the
configuration in them read by kvplane.

KVPLANE_WRITE_GOLDEN=1 writes deploy/kubernetes/kvplane.yaml and tests/interop/golden/chart anew.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

from harness.plane import find_binary

REPOSITORY = pathlib.Path(__file__).parents[2]
CHART = REPOSITORY / "deploy/helm/kvplane"
GOLDEN = REPOSITORY / "tests/interop/golden/chart"
PLAIN = REPOSITORY / "deploy/kubernetes/kvplane.yaml"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
EXAMPLES = sorted((REPOSITORY / "deploy/examples").iterdir())
FINDING = [one for one in EXAMPLES if "discovery" in yaml.safe_load((one / "values.yaml").read_text())]
LISTING = [one for one in EXAMPLES if one not in FINDING]
# Kinds that are somebody else's: kubernetes-validate has no schema for them.
FOREIGN = ("monitoring.coreos.com/", "cert-manager.io/", "leaderworkerset.", "inference.networking.", "gateway.networking.")
HELM = pathlib.Path(sys.executable).parent / "helm"
VALIDATE = pathlib.Path(sys.executable).parent / "kubernetes-validate"


def helm(*words):
    return subprocess.run([HELM, *map(str, words)], capture_output=True, text=True, timeout=60)


def rendered(*words):
    """What helm makes, without its notes on links."""
    ran = helm("template", "kvplane", CHART, "--namespace", "inference", *words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


class Dumper(yaml.SafeDumper):
    """Text of several lines as it stands in a file."""


def represent(dumper, text):
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, represent)


def validate(own, version, directory):
    manifest = directory / "manifest.yaml"
    manifest.write_text(yaml.safe_dump_all(own))
    command = [VALIDATE, "--strict", "--kubernetes-version", version, manifest]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(text, kind):
    return [one for one in documents(text) if one["kind"] == kind]


def pytest_name(path):
    return path.stem


@pytest.fixture(params=VALUES, ids=pytest_name)
def values(request):
    return request.param


def test_there_are_values_for_every_feature():
    assert len(VALUES) >= 8


def test_the_chart_lints(values):
    ran = helm("lint", "--strict", CHART, "--values", values)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("version", ["1.32", "1.34", "1.36"])
def test_kubernetes_accepts_it(values, version, tmp_path):
    own = [one for one in documents(rendered("--values", values)) if not one["apiVersion"].startswith(FOREIGN)]
    assert {"StatefulSet", "Service", "ConfigMap"} <= {one["kind"] for one in own}
    validate(own, version, tmp_path)


def test_it_renders_as_before(values):
    text = rendered("--values", values)
    # The rules and the dashboard have tests of their own, and change often.
    kept = [one for one in documents(text) if one["kind"] != "PrometheusRule" and not one["metadata"]["name"].endswith("-dashboard")]
    text = yaml.dump_all(kept, Dumper=Dumper, sort_keys=True)
    golden = GOLDEN / values.name
    if os.environ.get("KVPLANE_WRITE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "look at the difference; KVPLANE_WRITE_GOLDEN=1 accepts it"


def test_kvplane_reads_the_configuration(values, tmp_path):
    text = rendered("--values", values)
    config = next(one for one in of_kind(text, "ConfigMap") if "kvplane.toml" in one["data"])["data"]["kvplane.toml"]
    file = tmp_path / "kvplane.toml"
    file.write_text(config)
    arguments = of_kind(text, "StatefulSet")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    own = [file if one.startswith("--config=") else one for one in arguments]
    own[own.index(file):own.index(file) + 1] = ["--config", file]
    ran = subprocess.run([find_binary(), *own, "--dump-config"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_what_is_mounted_is_what_the_configuration_names(values):
    text = rendered("--values", values)
    pod = of_kind(text, "StatefulSet")[0]["spec"]["template"]["spec"]
    mounted = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    config = next(one for one in of_kind(text, "ConfigMap") if "kvplane.toml" in one["data"])["data"]["kvplane.toml"]
    named = [line.split('"')[1] for line in config.splitlines() if '"/etc/kvplane/' in line]
    assert all(any(path.startswith(mount) for mount in mounted) for path in named), (named, mounted)
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_pods_are_confined(values):
    text = rendered("--values", values)
    pods = [one["spec"]["template"]["spec"] for one in of_kind(text, "StatefulSet")]
    pods += [one["spec"] for one in of_kind(text, "Pod")]
    for pod in pods:
        # Only where kvplane asks the API server, and then with rights to read.
        watches = "kind: Role\n" in text and pod.get("restartPolicy") != "Never"
        assert pod["automountServiceAccountToken"] is watches
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "auth.insecure=true"),
        (["--set", "auth.insecure=true", "--set", "tls.clientCa=ca.crt"], "tls.clientCa needs"),
        (["--set", "auth.insecure=true", "--set", "tls.certManager.enabled=true"], "issuerRef.name"),
        (["--set", "auth.insecure=true", "--set", "replica=2"], "replica"),
        (["--set", "auth.insecure=true", "--set", "engines[0].id=a", "--set", "engines[0].kind=llamacpp"], "kind"),
        (["--set", "auth.insecure=true", "--set", "service.http=70000"], "service.http"),
        (["--set", "auth.insecure=true", "--set", "picker.enabled=true"], "picker.pool"),
        (["--set", "auth.insecure=true", "--set", "discovery[0].model=m"], "discovery"),
    ],
)
def test_wrong_values_are_refused(words, said):
    ran = helm("template", "kvplane", CHART, *words)
    assert ran.returncode != 0
    assert said in ran.stderr


def test_the_rules_and_the_dashboard_are_the_projects_own():
    text = rendered("--values", CHART / "ci/monitoring.yaml")
    rules = of_kind(text, "PrometheusRule")[0]["spec"]
    assert rules == yaml.safe_load((REPOSITORY / "deploy/prometheus/alerts.yaml").read_text())
    dashboard = next(one for one in of_kind(text, "ConfigMap") if one["metadata"]["name"].endswith("-dashboard"))
    assert yaml.safe_load(dashboard["data"]["kvplane.json"]) == yaml.safe_load((REPOSITORY / "deploy/grafana/kvplane.json").read_text())


def test_the_plain_manifests_are_the_charts():
    """For people without helm: deploy/kubernetes is what the chart makes of the values beside it."""
    header = "# Made from deploy/helm/kvplane with values.yaml beside it: KVPLANE_WRITE_GOLDEN=1 in tests/interop/test_chart.py.\n"
    made = documents(rendered("--values", PLAIN.parent / "values.yaml"))
    kept = [one for one in made if "helm.sh/hook" not in one["metadata"].get("annotations", {})]
    for one in kept:
        for labels in [one["metadata"]["labels"], one.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})]:
            for name in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
                labels.pop(name, None)
    text = header + yaml.dump_all(kept, Dumper=Dumper, sort_keys=False)
    if os.environ.get("KVPLANE_WRITE_GOLDEN"):
        PLAIN.write_text(text)
    assert text == PLAIN.read_text()
    resources = yaml.safe_load((PLAIN.parent / "kustomization.yaml").read_text())["resources"]
    assert resources == [PLAIN.name]


def test_roles_only_read(values):
    text = rendered("--values", values)
    roles, bindings = of_kind(text, "Role"), of_kind(text, "RoleBinding")
    account = of_kind(text, "StatefulSet")[0]["spec"]["template"]["spec"]["serviceAccountName"]
    assert not of_kind(text, "ClusterRole")
    assert len(roles) == len(bindings)
    for role, binding in zip(roles, bindings):
        assert role["metadata"]["namespace"] == binding["metadata"]["namespace"]
        assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "inference"}]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]


@pytest.mark.parametrize("example", FINDING, ids=pytest_name)
def test_examples_are_found(example, tmp_path):
    """What kvplane looks for is what the example's pods say: labels, the pool, and ports by their names."""
    manifests = list(yaml.safe_load_all((example / "engines.yaml").read_text()))
    own = [one for one in manifests if not one["apiVersion"].startswith(FOREIGN)]
    for version in ("1.32", "1.36"):
        if own:
            validate(own, version, tmp_path)
    values = yaml.safe_load((example / "values.yaml").read_text())
    text = rendered("--values", example / "values.yaml")
    pools = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "InferencePool"}
    templates = [one["spec"]["template"] for one in manifests if one["kind"] == "Deployment"]
    templates += [one["spec"]["leaderWorkerTemplate"]["workerTemplate"] for one in manifests if one["kind"] == "LeaderWorkerSet"]
    assert templates
    for source in values["discovery"]:
        if "selector" in source:
            wanted = dict(term.split("=") for term in source["selector"].split(","))
        else:
            pool = pools[source["inference_pool"]]["spec"]
            wanted = pool["selector"]["matchLabels"]
            service = next(one for one in of_kind(text, "Service") if one["metadata"]["name"] == pool["endpointPickerRef"]["name"])
            assert pool["endpointPickerRef"]["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}
        for template in templates:
            assert wanted.items() <= template["metadata"]["labels"].items()
            container = template["spec"]["containers"][0]
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            launched = " ".join(container["args"])
            assert f'"endpoint":"tcp://*:{ports["kv-events"]}"' in launched
            assert f'"replay_endpoint":"tcp://*:{ports["kv-replay"]}"' in launched


@pytest.mark.parametrize("example", LISTING, ids=pytest_name)
def test_examples_fit_together(example, tmp_path):
    """Every engine of the values is a pod of the example, at ports that its Service and its command line name."""
    manifests = list(yaml.safe_load_all((example / "engines.yaml").read_text()))
    for version in ("1.32", "1.36"):
        validate(manifests, version, tmp_path)
    service, engines = manifests
    values = yaml.safe_load((example / "values.yaml").read_text())
    rendered("--values", example / "values.yaml")
    names = [f"{engines['metadata']['name']}-{n}" for n in range(engines["spec"]["replicas"])]
    assert [one["id"] for one in values["engines"]] == names
    container = engines["spec"]["template"]["spec"]["containers"][0]
    opened = {port["containerPort"] for port in container["ports"]}
    assert opened == {port["port"] for port in service["spec"]["ports"]}
    configured = next(one for one in container["args"] if one.startswith("--kv-events-config="))
    for engine in values["engines"]:
        for key, endpoint in (("events", "endpoint"), ("replay", "replay_endpoint"), ("http", None)):
            host, port = engine[key].split("//")[1].split(":")
            assert host == f"{engine['id']}.{service['metadata']['name']}"
            assert {int(port) + rank for rank in range(engine.get("ranks", 1) if endpoint else 1)} <= opened
            assert endpoint is None or f'"{endpoint}":"tcp://*:{port}"' in configured


def test_the_chart_packs(tmp_path):
    """Links become files in the archive."""
    copy = tmp_path / "kvplane"
    shutil.copytree(CHART, copy, symlinks=False)
    ran = helm("package", copy, "--destination", tmp_path)
    assert ran.returncode == 0, ran.stderr
    packed = next(tmp_path.glob("kvplane-*.tgz"))
    ran = helm("template", "kvplane", packed, "--values", CHART / "ci/monitoring.yaml")
    assert ran.returncode == 0 and "KvplaneDown" in ran.stdout, ran.stderr
