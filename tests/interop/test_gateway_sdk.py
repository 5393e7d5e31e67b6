"""The clients of OpenAI and Anthropic against the gateway, as their users call them: plain, streaming, and refused."""

import json
import subprocess

import pytest

from harness.plane import ROOT, clean_environment
from test_envoy_engines import vocabulary  # noqa: F401
from test_gateway import gateway  # noqa: F401


# Importing the clients alone takes a minute on a busy machine.
@pytest.mark.timeout(600)
def test_the_clients_of_openai_and_anthropic(gateway, tmp_path):  # noqa: F811
    python = ROOT / ".venv-sdk" / "bin" / "python"
    if not python.exists():
        pytest.skip("the clients are not installed: scripts/interop-env.sh sdk installs them")
    for name, key in (("app", "key-of-app"), ("operator", "key-of-operator")):
        (tmp_path / name).write_text(key)
    keys = (
        f'[[auth.token]]\nname = "app"\nrole = "infer"\nfile = "{tmp_path}/app"\n'
        f'[[auth.token]]\nname = "operator"\nrole = "admin"\nfile = "{tmp_path}/operator"\n'
    )
    caller = '[[gateway.caller]]\nname = "app"\nmodels = ["sim", "lora", "nobody"]\n'
    plane, sims = gateway(count=1, gateway=f'access_log = true\nprobe_every = "100ms"\n{caller}', more=keys, words=("--loras", "lora"))
    # Adapters are known once the engine was asked.
    program = ROOT / "tests" / "interop" / "harness" / "programs" / "sdk.py"
    plane.until_served("key-of-app", ["lora", "sim"])
    ran = subprocess.run(
        [python, program, plane.gateway, "key-of-app", sims[0].http], capture_output=True, text=True, timeout=500, env=clean_environment(),
    )
    assert ran.returncode == 0, ran.stderr
    assert set(json.loads(ran.stdout)) == {"openai", "anthropic"}
    log = plane.log()
    assert "key-of-app" not in log and "Once upon a time" not in log
    lines = [json.loads(line) for line in log.splitlines() if '"message":"request"' in line]
    chats = [line for line in lines if line["api"] == "chat_completions" and line["status"] == 200]
    assert chats and all(line["receipt"] and line["caller"] == "app" and line["engine"] == "e0" for line in chats)
    assert {"responses", "messages", "embeddings", "completions"} <= {line["api"] for line in lines}
