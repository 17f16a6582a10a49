"""`kant apply`, `diff` and `export` against a real Kant server."""

import json
import sys

import pytest
import yaml

from tenants.models import Quota, Tenant

FILE = """
tenants:
  lab:
    parent: ml
    members: {joe: tenant-admin}
    quotas:
      H100: {guaranteed: 0.5}
"""


@pytest.fixture
def ops(kant):
    return kant.sign_in("ops")


def test_a_file_is_compared_applied_and_exported(ops, tmp_path):
    file = tmp_path / "org.yaml"
    file.write_text(FILE)
    code, out, told = ops("diff", "-f", str(file))
    assert code == 0
    assert out.splitlines() == [
        "+ tenant lab",
        '    parent: "ml"',
        "+ member lab / joe",
        '    role: "tenant-admin"',
        "+ quota lab / H100",
        "    guaranteed: 0.5",
    ]
    assert told == "Would be: 3 created. Nothing was changed.\n"
    assert not Tenant.objects.filter(name="lab").exists()

    code, again, told = ops("apply", "-f", str(file), "--reason", "Git", "--overcommit")
    assert (code, again) == (0, out)
    assert told.endswith("3 created.\n")
    assert Quota.objects.get().guaranteed_milli == 500

    code, out, _ = ops("export")
    assert code == 0
    assert yaml.safe_load(out)["tenants"]["lab"]["quotas"] == {"H100": {"guaranteed": 0.5}}
    file.write_text(out)
    assert ops("diff", "-f", str(file), "--name", "copy") == (
        *(0, "", "Nothing to change: everything already matches the file.\n"),
    )
    code, out, _ = ops("apply", "-f", "-", "--prune", "--reason", "Git", stdin="{}")
    assert out.splitlines() == ["- quota lab / H100", "- member lab / joe", "- tenant lab"]
    assert not Tenant.objects.filter(name="lab").exists()


def test_what_is_kept_and_what_changes_are_told(ops):
    ops("apply", "-f", "-", "--reason", "x", stdin='{"tenants": {"a": {}, "law": {"weight": 2}}}')
    code, out, told = ops("diff", "-f", "-", stdin='{"tenants": {"law": {}}}')
    assert (code, out) == (0, "~ tenant law\n    weight: 2.0 → 1.0\n")
    assert "Kept, although the file no longer has it: tenant a. --prune deletes it." in told
    code, out, _ = ops("diff", "-f", "-", "-o", "json", stdin="{}")
    assert {one["names"][0] for one in json.loads(out)["kept"]} == {"a", "law"}


def test_without_pyyaml_the_export_is_json_which_is_yaml(ops, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    code, out, _ = ops("export")
    assert code == 0
    assert json.loads(out)["tenants"]["vision"]["parent"] == "ml"


def test_faults_name_their_place(ops, kant):
    code, out, told = ops("apply", "-f", "-", "--reason", "x", stdin="tenants: {law: {wight: 1}}")
    assert (code, out) == (2, "")
    assert "document.tenants.law.wight" in told.replace("/", ".")
    code, _, told = ops("diff", "-f", "-", stdin="[1]")
    assert code == 2
    assert "contains no organisation" in told
    kant.sign_in("root")
    assert kant("export")[0] == 4
