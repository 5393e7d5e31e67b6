"""The Helm chart and the plain manifests: rendered by helm, checked against Kubernetes' own schemas, and the
configuration in them read by kvplane.

KVPLANE_WRITE_GOLDEN=1 writes deploy/kubernetes/kvplane.yaml and tests/interop/golden/chart anew.
"""

import base64
import os
import pathlib
import shutil
import subprocess
import sys

import jsonschema
import pytest
import yaml

from harness.plane import clean_environment, find_binary

REPOSITORY = pathlib.Path(__file__).parents[2]
CHART = REPOSITORY / "deploy/helm/kvplane"
GOLDEN = REPOSITORY / "tests/interop/golden/chart"
PLAIN = REPOSITORY / "deploy/kubernetes/kvplane.yaml"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
EXAMPLES = sorted((REPOSITORY / "deploy/examples").iterdir())
BESIDE = [one for one in EXAMPLES if not (one / "engines.yaml").exists()]
FINDING = [one for one in EXAMPLES if "discovery" in yaml.safe_load((one / "values.yaml").read_text())]
LISTING = [one for one in EXAMPLES if one not in FINDING + BESIDE]
# Kinds that are somebody else's: kubernetes-validate has no schema for them, so ours have the fields that we use.
FOREIGN = (
    "monitoring.coreos.com/", "cert-manager.io/", "leaderworkerset.", "inference.networking.", "gateway.networking.", "networking.istio.io/",
)
FOREIGN_SCHEMAS = yaml.safe_load((REPOSITORY / "tests/interop/foreign_schemas.yaml").read_text())
VERSIONS = ("1.32", "1.34", "1.36")
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


def validate(manifests, version, directory):
    """Kubernetes' own kinds by its schemas; those of others by ours."""
    foreign = [one for one in manifests if one["apiVersion"].startswith(FOREIGN)]
    for one in foreign:
        schema = {"$ref": f"#/kinds/{one['kind']}", **FOREIGN_SCHEMAS}
        jsonschema.validate(one, schema)
    own = [one for one in manifests if one not in foreign]
    for one in foreign:
        for name, template in one["spec"].get("leaderWorkerTemplate", {}).items():
            if name.endswith("Template"):
                own.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "one"}})
    if not own:
        return
    manifest = directory / "manifest.yaml"
    manifest.write_text(yaml.safe_dump_all(own))
    command = [VALIDATE, "--strict", "--kubernetes-version", version, manifest]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(text, kind):
    return [one for one in documents(text) if one["kind"] == kind]


def workload(text):
    """The template of its pods, and kvplane's container in it."""
    (one,) = of_kind(text, "StatefulSet") + of_kind(text, "Deployment")
    pod = one["spec"]["template"]["spec"]
    return pod, next(c for c in pod.get("initContainers", []) + pod["containers"] if c["name"] == "kvplane")


def configuration(text):
    """kvplane.toml, where there is one."""
    found = [one["data"]["kvplane.toml"] for one in of_kind(text, "ConfigMap") if "kvplane.toml" in one["data"]]
    return found[0] if found else None


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


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_it(values, version, tmp_path):
    all = documents(rendered("--values", values))
    validate(all, version, tmp_path)
    kinds = {one["kind"] for one in all}
    assert "ServiceAccount" in kinds or "serviceAccount" in values.read_text()
    assert {"StatefulSet", "Service", "ConfigMap"} <= kinds or "Deployment" in kinds


def test_it_renders_as_before(values):
    text = rendered("--values", values)
    # The rules and the dashboard have tests of their own, and change often.
    kept = [one for one in documents(text) if one["kind"] != "PrometheusRule" and not one["metadata"]["name"].endswith("-dashboard")]
    for one in kept:
        if one["kind"] == "Secret":
            one["data"] = {key: "made at random" for key in one["data"]}
    text = yaml.dump_all(kept, Dumper=Dumper, sort_keys=True)
    golden = GOLDEN / values.name
    if os.environ.get("KVPLANE_WRITE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "look at the difference; KVPLANE_WRITE_GOLDEN=1 accepts it"


def test_kvplane_reads_the_configuration(values, tmp_path):
    text = rendered("--values", values)
    _, container = workload(text)
    # What Kubernetes puts in the place of fields of the pod.
    given = {one["name"]: one.get("value", "vllm-5c7d-abcde") for one in container.get("env", [])}
    environment = {**clean_environment(), **given}
    words = [word.replace("$(POD_NAME)", given.get("POD_NAME", "")) for word in container["args"]]
    config = configuration(text)
    if config is None:
        # A reporter: every flag is one that it has.
        ran = subprocess.run([find_binary(), "report", "--help"], capture_output=True, text=True, timeout=60)
        assert words[0] == "report"
        assert not [word for word in words[1:] if word.split("=")[0] not in ran.stdout]
        return
    file = tmp_path / "kvplane.toml"
    file.write_text(config)
    words = [f"--config={file}" if word.startswith("--config=") else word for word in words]
    ran = subprocess.run([find_binary(), *words, "--dump-config"], capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 0, ran.stderr


def test_what_is_mounted_is_what_the_configuration_names(values):
    text = rendered("--values", values)
    pod, container = workload(text)
    mounts = container.get("volumeMounts", [])
    mounted = [mount["mountPath"] for mount in mounts]
    config = configuration(text) or ""
    named = [line.split('"')[1] for line in config.splitlines() if '"/etc/kvplane/' in line]
    named += [one.get("value", "") for one in container.get("env", []) if one["name"].endswith("__DIR")]
    named += [word.split("=")[1] for word in container["args"] if word.startswith("--token-file=")]
    assert all(any(path.startswith(mount) for mount in mounted) for path in named), (named, mounted)
    claimed = [one for set in of_kind(text, "StatefulSet") for one in set["spec"].get("volumeClaimTemplates", [])]
    volumes = {one["name"] for one in pod.get("volumes", [])} | {one["metadata"]["name"] for one in claimed}
    assert {mount["name"] for mount in mounts} == volumes


def test_pods_are_confined(values):
    text = rendered("--values", values)
    pod, container = workload(text)
    pods = [(pod, container)] + [(one["spec"], one["spec"]["containers"][0]) for one in of_kind(text, "Pod")]
    for pod, container in pods:
        # Only where kvplane asks the API server, and then with rights to read.
        watches = "kind: Role\n" in text and pod.get("restartPolicy") != "Never"
        assert pod["automountServiceAccountToken"] is watches
        # Beside an engine kvplane's container has its own, whatever the engine's pod has.
        confined = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert confined["runAsNonRoot"] is True and confined["runAsUser"] == 65532
        assert confined["seccompProfile"] == {"type": "RuntimeDefault"}
        assert confined["readOnlyRootFilesystem"] is True and confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}


def test_a_sidecar_starts_before_its_engine_and_keeps_nobody_waiting(values):
    text = rendered("--values", values)
    pod, container = workload(text)
    if not pod.get("initContainers"):
        assert "restartPolicy" not in container and container["readinessProbe"]
        return
    # An init container that goes on is there before the engine, and after it; the engine alone says whether the pod is ready.
    assert container in pod["initContainers"] and container["restartPolicy"] == "Always"
    assert "readinessProbe" not in container and container["startupProbe"]["httpGet"]["path"] == "/healthz"
    (engine,) = pod["containers"]
    assert not {port["name"] for port in engine["ports"]} & {port["name"] for port in container["ports"]}
    assert not {port["containerPort"] for port in engine["ports"]} & {port["containerPort"] for port in container["ports"]}
    config = configuration(text)
    told = config if config else " ".join(container["args"])
    opened = {str(port["containerPort"]) for port in engine["ports"]}
    assert all(any(f"127.0.0.1:{port}" in told for port in opened) for port in ("8000", "5557", "5558"))


def test_tokens_that_the_chart_makes_are_secrets():
    text = rendered("--values", CHART / "ci/made-tokens.yaml")
    (secret,) = of_kind(text, "Secret")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    values = [base64.b64decode(one) for one in secret["data"].values()]
    assert set(secret["data"]) == {"gateway", "ops"} and len(set(values)) == 2 and min(map(len, values)) >= 32
    assert not any(one.decode() in text for one in values)


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
        (["--set", "auth.insecure=true", "--set", "journal.size=plenty"], "journal.size"),
        (["--set", "mode=sidecar"], "sidecar.engine"),
        (["--set", "mode=sidecar", "--set", "sidecar.engine.name=e"], "sidecar.model"),
        (["--set", "mode=sidecar", "--set", "sidecar.engine.name=e", "--set", "sidecar.model=m"], "sidecar.report.server"),
        (["--set", "mode=sidecar,sidecar.role=serve,sidecar.engine.name=e,sidecar.model=m"], "auth.insecure=true"),
        (["--set", "mode=sidecar,sidecar.engine.name=e,sidecar.model=m,picker.enabled=true,picker.pool=p"], "leave out"),
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
    account = workload(text)[0]["serviceAccountName"]
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
    for version in VERSIONS:
        validate(manifests, version, tmp_path)
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
    for version in VERSIONS:
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


@pytest.mark.parametrize("example", BESIDE, ids=pytest_name)
def test_examples_with_kvplane_beside_the_engine(example, tmp_path):
    text = rendered("--values", example / "values.yaml")
    for version in VERSIONS:
        validate(documents(text), version, tmp_path)
    pod, container = workload(text)
    (engine,) = pod["containers"]
    launched = " ".join(engine["args"])
    assert '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"' in launched and "--served-model-name=llama" in launched
    assert "llama" in (configuration(text) or " ".join(container["args"]))


def test_there_is_an_example_of_every_case():
    cases = {"vllm", "vllm-data-parallel", "sglang", "leader-worker-set", "llm-d", "smg", "gateway", "inference-cache", "engine-sidecar"}
    assert cases <= {one.name for one in EXAMPLES}
    kinds = {one["kind"] for one in yaml.safe_load_all((REPOSITORY / "deploy/examples/gateway/engines.yaml").read_text())}
    assert {"Gateway", "HTTPRoute", "InferencePool", "InferenceObjective", "InferenceModelRewrite"} <= kinds


def test_the_schemas_of_others_refuse_what_is_wrong():
    """A schema that accepts everything would check nothing."""
    pool = next(
        one for one in yaml.safe_load_all((REPOSITORY / "deploy/examples/gateway/engines.yaml").read_text()) if one["kind"] == "InferencePool"
    )
    for change in ({"targetPorts": [{"number": 0}]}, {"selector": {"app": "vllm"}}, {"targetPortNumber": 8000}, {"targetPorts": []}):
        wrong = {**pool, "spec": {**pool["spec"], **change}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, {"$ref": "#/kinds/InferencePool", **FOREIGN_SCHEMAS})


def test_the_chart_packs(tmp_path):
    """Links become files in the archive."""
    copy = tmp_path / "kvplane"
    shutil.copytree(CHART, copy, symlinks=False)
    ran = helm("package", copy, "--destination", tmp_path)
    assert ran.returncode == 0, ran.stderr
    packed = next(tmp_path.glob("kvplane-*.tgz"))
    ran = helm("template", "kvplane", packed, "--values", CHART / "ci/monitoring.yaml")
    assert ran.returncode == 0 and "KvplaneDown" in ran.stdout, ran.stderr
