"""The dependency audit finds known advisories and does not fail when offline."""

import importlib.util
import json
import subprocess
from types import SimpleNamespace

import pytest

from tests.deploy.manifests import ROOT


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VULNERABLE = {
    "dependencies": [
        {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"],
                                                 "fix_versions": ["2"]}]},
        {"name": "b", "version": "1", "skip_reason": "not found"},
        {"name": "c", "version": "1", "vulns": []},
    ]
}  # fmt: skip


def test_nothing_is_known_against_what_is_installed(audit):
    assert audit.known(audit.installed()) == []
    assert {"django", "aiohttp", "authlib"} <= audit.installed().keys()


def test_old_versions_are_found(audit):
    found = audit.known({"requests": "2.31.0", "django": "5.2.19", "h11": "0.16.0"})
    assert found == [
        "requests 2.31.0: CVE-2024-47081, mended in 2.32.4",
        "requests 2.31.0: CVE-2024-35195, mended in 2.32.0",
    ]


def test_what_the_index_says_is_read_and_may_be_reasoned(audit, monkeypatch):
    assert audit.reported(VULNERABLE) == (["a 1: PYSEC-1, mended in 2"], 2)
    monkeypatch.setitem(audit.REASONED, "CVE-1", "Kant does not use it.")
    assert audit.reported(VULNERABLE) == ([], 2)


@pytest.mark.parametrize("answer", ["", "Traceback", "{}", subprocess.TimeoutExpired("x", 1)])
def test_an_index_out_of_reach_is_no_finding(audit, monkeypatch, capsys, answer):
    def run(*_, **__):
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer, returncode=1)

    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == 0
    assert "the index gives no advisories" in capsys.readouterr().out
    monkeypatch.setattr(
        audit.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=json.dumps(VULNERABLE))
    )
    assert audit.main() == 1
