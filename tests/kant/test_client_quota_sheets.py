"""Quotas as CSV on the command line: export, import into a draft as a whole, and back."""

import json

import pytest

from tenants.models import DraftCell, Quota
from tests.kant.test_client_quota_drafts import draft, root  # noqa: F401 - a fixture


def drafted():
    return {(c.tenant.name, c.gpu_type.name): c.typed for c in DraftCell.objects.all()}


@pytest.fixture
def sheet(root, tmp_path):  # noqa: F811
    """Write a file and import it."""

    def write(text):
        path = tmp_path / "quotas.csv"
        path.write_text(text, encoding="utf-8")
        return draft(root, "import", str(path))

    return write


def test_what_is_exported_is_imported_unchanged(root, sheet):  # noqa: F811
    Quota.objects.filter(tenant__name="vision").update(
        guaranteed_milli=7500, borrow_limit_milli=4000, lend_limit_milli=500
    )
    code, out, _ = root("quotas", "-o", "csv")
    assert code == 0
    assert out.splitlines()[0].startswith("tenant,")
    assert "7.5 shared borrow 4 lend 0.5" in out
    code, _, told = sheet(out)
    assert (code, told) == (0, "Nothing to import: the quotas already match the file.\n")
    assert drafted() == {}
    assert root("quotas", "-o", "csv", "-t", "vision")[0] == 2


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_file_is_imported_and_exported_again(root, sheet, separator):  # noqa: F811
    rows = [("tenant", "H100", "A100"), ("vision", "12", ""), ("vision-lab", "2 isolated", "1")]
    text = "\ufeff" + "\r\n".join(separator.join(row) for row in rows)
    assert sheet(text)[2] == "3 quotas are in your draft now.\n"
    wanted = {
        ("vision", "H100"): "12", ("vision-lab", "H100"): "2 isolated", ("vision-lab", "A100"): "1",
    }  # fmt: skip
    assert drafted() == wanted
    draft(root, "set", "vision", "H100", "12", "--borrow-limit", "any", "--lend-limit", "3")
    out = draft(root, "export")[1]
    assert "12 borrow any lend 3" in out
    draft(root, "discard")
    assert sheet(out)[2] == "3 quotas are in your draft now.\n"
    assert draft(root, "export")[1] == out
    assert sheet(out)[2].startswith("Nothing to import")
    # A cell that states the current quota leaves the draft.
    assert sheet("tenant,H100\nvision,8\n")[2] == "2 quotas are in your draft now.\n"
    assert ("vision", "H100") not in drafted()


def test_stdin_is_read(root):  # noqa: F811
    words = ("quota", "draft", "import", "-", "-o", "json")
    code, out, _ = root(*words, stdin="tenant,H100\nvision,9\n")
    assert (code, json.loads(out)["cells"][0]["guaranteed"]) == (0, 9.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tenant,H100\nvision,12\nml,1 2x\n", "line 3, column 2 (ml, H100): "),
        ("tenant,H100\n\nvision,12\nnobody,4\n", "line 4, column 2 (nobody, H100): There is no"),
        ("tenant,H100,B9\nvision,12,3\n", "line 2, column 3 (vision, B9): There is no GPU type"),
        ("tenant,H100\nvision,12,3\n", "line 2, column 3: name the GPU type"),
        ("tenant,H100\nvision,12\n,3\n", "line 3, column 2: name the tenant"),
        ("tenant,H100\nvision,12\nvision,3\n", "line 3, column 2: vision is also in line 2."),
        ("tenant,H100,H100\nvision,12,3\n", "line 1, column 3: H100 appears twice."),
        ("tenant\nvision\n", "line 1: name a GPU type"),
        ("", "is empty"),
        ('tenant,H100\nvision,"12\n', "line 2: "),
    ],
)
def test_what_is_wrong_is_told_by_line_and_column_and_nothing_is_imported(sheet, text, told):
    code, _, said = sheet(text)
    assert code == 2
    assert told in said
    assert drafted() == {}


def test_files_that_are_no_table_are_refused(root, sheet, tmp_path):  # noqa: F811
    assert "more than 1,000,000" in sheet("tenant,H100\n" + "x" * 1_000_000)[2]
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    assert draft(root, "import", str(tmp_path / "b"))[0] == 2
    assert draft(root, "import", str(tmp_path / "none"))[0] == 2
    code, _, _ = sheet("tenant,H100\nlaw,3\nvision,9\n")
    assert code != 0
    assert drafted() == {}
