"""The live proof of queueing runs as docs/proof/README.md says."""

import importlib
import subprocess
import sys

import pytest

from tests.live.test_serve import ROOT, WITHIN_S, Serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
FOLDER = ROOT / "docs" / "proof"
POLICY = "/clusters/demo/policy"


def proof(*options):
    command = [sys.executable, str(FOLDER / "queueing.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture
def kant(migrated_folder):
    serving = Serving(migrated_folder)
    yield serving.url
    serving.process.terminate()
    serving.process.wait(WITHIN_S)
    serving.process.stdout.close()


def test_every_policy_and_every_preemption_happens_and_all_is_put_back(kant, monkeypatch):
    wrong = proof("--url", kant, "--password", "no")
    assert wrong.returncode == 2
    assert "401" in wrong.stderr
    unknown = proof("--url", kant, "--cluster", "elsewhere")
    assert unknown.returncode == 2
    assert "--cluster" in unknown.stderr
    monkeypatch.syspath_prepend(FOLDER)
    with importlib.import_module("rest").Client(kant, "operator", "kant-demo") as client:
        before = client.get(POLICY)["policy"]
        quotas = client.every("/quotas")
        done = proof("--url", kant)
        assert done.returncode == 0, done.stdout + done.stderr
        for kind in ("backfill", "priority", "reclaim"):
            assert f"Preempted ({kind})" in done.stdout
        for reason in ("BehindInQueue", "ReservedForHead", "InsufficientGpus", "OnHold"):
            assert f"waits: {reason}" in done.stdout
        assert "head is reserved" in done.stdout
        assert client.get(POLICY)["policy"] == before
        assert client.every("/quotas") == quotas
        assert not client.every("/jobs?state=PENDING&state=QUOTA_RESERVED&state=RUNNING")
        assert not client.get("/tenants/proof")["is_active"]
        # A pool in use is left alone.
        busy = {"name": "busy", "tenant": "vision", "gpu_type": "NVIDIA-L40S", "gpus": 1}
        job = client.post("/jobs", busy)["id"]
        refused = proof("--url", kant)
        assert refused.returncode == 2
        assert job in refused.stderr


def test_without_kant_it_says_how_to_start_it():
    done = proof("--url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "make run" in done.stderr
