"""The vendored files match the recorded ones, and production can collect them."""

import hashlib
import json
from pathlib import Path

import pytest
from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "static" / "vendor", ROOT / "tests" / "e2e" / "vendor"]


@pytest.mark.parametrize("folder", FOLDERS, ids=["static", "tests"])
def test_every_vendored_file_has_its_recorded_hash_and_a_licence(folder):
    rows = json.loads((folder / "VENDOR.json").read_text())
    assert {r["file"] for r in rows} == {f.name for f in folder.iterdir()} - {"VENDOR.json"}
    for row in rows:
        content = (folder / row["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["file"]
        assert row["licence"]
        assert row["version"]
        assert b"sourceMappingURL=" not in content[-300:], "points to a file that is not there"


def test_production_collects_and_hashes_all_static_files(settings, tmp_path):
    settings.STATIC_ROOT = tmp_path / "collected"
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
    }
    call_command("collectstatic", interactive=False, verbosity=0)
    manifest = json.loads((settings.STATIC_ROOT / "staticfiles.json").read_text())["paths"]
    assert {"css/kant.css", "js/charts.js", "vendor/htmx.min.js"} <= manifest.keys()


def test_templates_hold_no_inline_script_and_no_outside_address():
    for template in (ROOT / "templates").rglob("*.html"):
        text = template.read_text()
        assert "<script>" not in text, template
        assert " onclick=" not in text, template
        assert "hx-on" not in text, template
        assert "https://" not in text, template
        assert "http://" not in text, template
