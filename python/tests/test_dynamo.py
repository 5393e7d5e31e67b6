"""`kvplane.dynamo`: its arguments here; what it does with Dynamo's own router is tested in tests/interop/test_dynamo_bridge.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvplane
from kvplane.dynamo import Bridge, Worker, main

DYNAMO = Path(os.environ.get("DYNAMO_PYTHON") or Path(__file__).resolve().parents[2] / ".venv-dynamo" / "bin" / "python")


def test_workers_are_written_as_dynamos_indexer_has_them():
    assert Worker.parse("7=tcp://127.0.0.1:5657") == (7, 0, "tcp://127.0.0.1:5657")
    assert Worker.parse("18446744073709551615:3=ipc:///run/x") == (2**64 - 1, 3, "ipc:///run/x")
    for wrong in ("7", "=tcp://a:1", "x=tcp://a:1", "7:=tcp://a:1", "-1=tcp://a:1", "18446744073709551616=tcp://a:1", "7=a:1", "7:-1=tcp://a:1"):
        with pytest.raises(ValueError, match=wrong.split("=")[0] or "="):
            Worker.parse(wrong)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--worker", "7=here"], "7=here"),
        (["--worker", "7=tcp://a:1", "--worker", "7:0=tcp://a:2"], "twice"),
        (["--worker", "7=tcp://a:1", "--block-size", "0"], "--block-size"),
        ([], "--worker"),
    ],
)
def test_a_mistake_is_named_before_dynamo_is_needed(capsys, words, named):
    with pytest.raises(SystemExit) as ended:
        main(["--endpoint", "a.b.c", "--block-size", "4", *words])
    assert ended.value.code == 2 and named in capsys.readouterr().err


def test_a_bridge_needs_blocks():
    with pytest.raises(ValueError, match="block_size"):
        Bridge(None, 0)


def test_without_dynamo_it_says_so():
    words = [sys.executable, "-m", "kvplane.dynamo", "--endpoint", "a.b.c", "--block-size", "4", "--worker", "7=tcp://127.0.0.1:1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "pip install ai-dynamo" in done.stderr, done


@pytest.mark.skipif(not DYNAMO.is_file(), reason="Dynamo 1.6.1 is not installed: scripts/interop-env.sh dynamo makes .venv-dynamo")
def test_the_installed_program_starts_in_dynamos_environment(tmp_path):
    """The module of the installed package, run by an interpreter that has Dynamo."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    env |= {
        "PYTHONPATH": str(Path(kvplane.__file__).parents[1]), "DYN_FILE_KV": str(tmp_path), "DYN_DISCOVERY_BACKEND": "file",
        "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    }
    words = [str(DYNAMO), "-m", "kvplane.dynamo", "--endpoint", "a.b.c", "--block-size", "4", "--worker", "7=tcp://127.0.0.1:1"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as program:
        try:
            seen = []
            for line in program.stderr:
                seen.append(line)
                if "feeding a.b.c with 1 ranks" in line:
                    break
            else:
                raise AssertionError("".join(seen))
            program.terminate()
            assert program.wait(timeout=30) == 0
        finally:
            program.kill()
