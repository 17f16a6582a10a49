"""`kant quota draft` against a real Kant server."""

import json

import pytest

from tenants.models import AuditRecord, Quota, Tenant


@pytest.fixture
def root(kant):
    """Tenant admin of ml; vision is below it and has 8 H100."""
    kant.sign_in("ops")
    for tenant, gpus in (("ml", "16"), ("vision", "8")):
        code, _, told = kant("quota", "set", tenant, "H100", "--guaranteed", gpus, "--reason", "x")
        assert code == 0, told
    return kant.sign_in("root")


def draft(kant, *words):
    return kant("quota", "draft", *words)


def guaranteed():
    return Quota.objects.get(tenant__name="vision").guaranteed_milli / 1000


def test_a_draft_is_written_looked_at_and_applied(root):
    assert draft(root, "show")[0] == 3
    assert draft(root, "set", "vision", "H100", "12")[2] == "1 quota is in your draft now.\n"
    draft(root, "set", "vision-lab", "H100", "2")
    assert draft(root, "drop", "vision-lab", "H100")[2] == "1 quota is in your draft now.\n"
    code, out, told = draft(root, "show")
    assert code == 0
    assert out.splitlines()[1].split() == ["vision", "H100", "8", "12", "-"]
    assert "It is not applied yet." in told
    assert guaranteed() == 8
    code, out, _ = draft(root, "list")
    assert out.splitlines()[1].split()[0] == "root"
    code, out, told = draft(root, "preview")
    assert (code, guaranteed()) == (0, 8), told
    code, out, told = draft(root, "apply", "--reason", "Season", "--dry-run")
    assert (code, guaranteed(), "dry run" in told) == (0, 8, True)
    assert out.splitlines()[1].split() == ["vision", "H100", "8", "12"]
    assert draft(root, "apply", "--reason", "Season")[1] == out
    assert guaranteed() == 12
    assert AuditRecord.objects.first().reason == "Season"
    assert draft(root, "apply", "--reason", "x")[0] == 3


def test_mode_and_limits_are_written_and_ordered(root):
    words = ("--borrow-limit", "4", "--lend-limit", "any")
    draft(root, "set", "vision", "H100", "12", *words)
    line = draft(root, "show")[1].splitlines()[1]
    assert "12, borrow limit 4, lend limit any" in line
    made = json.loads(draft(root, "apply", "--reason", "r", "--until", "2h", "-o", "json")[1])
    assert "12, borrow_limit" not in root("quota", "order", "show", made["order"]["id"])[1]
    assert "borrow limit 4" in root("quota", "order", "show", made["order"]["id"])[1]
    assert Quota.objects.get(tenant__name="vision").borrow_limit_milli == 4000


def test_a_cell_of_a_table_is_written_and_what_is_wrong_with_it_told(root):
    code, _, told = draft(root, "set", "vision", "H100", "12 shared borrow 1,200")
    assert code == 0
    why = "After borrow: Write thousands without a separator, e.g. 1200. Or write any."
    assert f"Warning: It cannot be applied yet. {why}" in told
    assert f"'12 shared borrow 1,200' ({why})" in draft(root, "show")[1]
    code, _, told = draft(root, "apply", "--reason", "r")
    assert (code, why in told) == (2, True)
    assert "Warning" not in draft(root, "set", "vision", "H100", "12 borrow 4")[2]
    assert "12, borrow limit 4" in draft(root, "show")[1]
    assert draft(root, "apply", "--reason", "r")[0] == 0
    assert Quota.objects.get(tenant__name="vision").borrow_limit_milli == 4000
    code, _, told = draft(root, "set", "vision", "H100", "9 lend 2", "--mode", "shared")
    assert (code, "`typed` already has this" in told) == (2, True)


def test_who_was_faster_is_told_and_overwritten_only_on_purpose(root):
    draft(root, "set", "vision", "H100", "12")
    root.sign_in("ops")
    assert root("quota", "set", "vision", "H100", "--guaranteed", "9", "--reason", "Theirs")[0] == 0
    code, out, _ = draft(root, "show", "root", "-o", "json")
    assert json.loads(out)["cells"][0]["overtaken"]["by"] == "ops"
    root.sign_in("root")
    _, out, _ = draft(root, "show")
    assert out.splitlines()[1].endswith("by ops (Theirs), was 8")
    code, _, told = draft(root, "apply", "--reason", "Mine")
    assert (code, guaranteed()) == (1, 9)
    assert "ops set it to 9 meanwhile (“Theirs”); you wrote 12. It was 8 when you began." in told
    draft(root, "set", "vision", "H100", "12", "--over")
    assert draft(root, "apply", "--reason", "Mine")[0] == 0
    assert guaranteed() == 12


def test_who_was_faster_is_told_of_each_field(root):
    draft(root, "set", "vision", "H100", "12", "--borrow-limit", "4")
    root.sign_in("ops")
    words = ("quota", "set", "vision", "H100", "--borrow-limit", "2", "--lend-limit", "1")
    assert root(*words, "--reason", "Theirs")[0] == 0
    root.sign_in("root")
    assert draft(root, "show")[1].splitlines()[1].endswith(
        "by ops (Theirs), was 8; borrow limit theirs 2, yours 4, was no limit; lend limit theirs "
        "1, you left it, was no limit"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "vision", "H100", "many"), 2, "'many' is not a number of GPUs"),
        (("set", "ml", "H100", "1"), 4, "Only operators and tenant admins of a tenant above"),
        (("set", "law", "H100", "1"), 2, "There is no tenant “law”"),
        (("show", "ops"), 3, "There is no draft of “ops” that you may see."),
        (("apply", "--reason", "x"), 3, "Your draft is empty."),
        (("preview",), 3, "Your draft is empty."),
    ],
)
def test_what_is_wrong_is_told(root, words, code, text):
    got, out, told = draft(root, *words)
    assert (got, out) == (code, ""), told
    assert text in told


def test_a_draft_is_discarded(root):
    draft(root, "set", "vision", "H100", "12")
    assert draft(root, "discard")[2] == "Discarded the draft.\n"
    assert draft(root, "show")[0] == 3
    draft(root, "set", "vision", "H100", "12")
    code, _, told = draft(root, "apply")
    assert (code, "Say why" in told) == (2, True)


def test_a_draft_is_applied_for_a_while_and_set_back(root):
    draft(root, "set", "vision", "H100", "12")
    code, out, told = draft(root, "apply", "--reason", "Season", "--until", "2h")
    assert (code, guaranteed()) == (0, 12), told
    assert "is temporary until" in told
    code, out, _ = root("quota", "orders")
    fields = out.splitlines()[1].split()
    assert fields[1] == "temporary"
    assert root("quota", "order", "show", fields[0])[1].splitlines()[-1].split()[:4] == [
        "vision", "H100", "8", "12",
    ]  # fmt: skip
    code, _, told = root("quota", "order", "end", fields[0], "--reason", "Earlier")
    assert (code, guaranteed()) == (0, 8), told
    assert root("quota", "orders")[1:] == ("", "No change of quotas is planned or temporary.\n")
    assert root("quota", "orders", "--all")[1].splitlines()[1].split()[1] == "done"


def test_a_draft_is_applied_later_or_called_off(root):
    draft(root, "set", "vision", "H100", "12")
    code, out, told = draft(root, "apply", "--reason", "Season", "--from", "2h", "-o", "json")
    made = json.loads(out)["order"]
    assert (code, made["state"], guaranteed()) == (0, "scheduled", 8), told
    code, _, told = root("quota", "order", "cancel", made["id"][:8], "--reason", "No")
    assert (code, "root called it off: No" in told) == (0, True)
    assert root("quota", "order", "cancel", made["id"], "--reason", "No")[0] == 1
    assert root("quota", "order", "show", "ffff")[0] == 3
    draft(root, "set", "vision", "H100", "12")
    code, _, told = draft(root, "apply", "--reason", "x", "--until", "soon")
    assert (code, "'soon' is not a time" in told) == (2, True)


def test_tenants_are_moved_and_weighed(root):
    code, out, told = draft(root, "move", "vision-lab", "--below", "ml", "--weight", "2")
    assert (code, told) == (0, "1 tenant is in your draft now.\n")
    draft(root, "set", "vision", "H100", "10")
    out = draft(root, "show")[1]
    assert "vision-lab  below vision → ml, weight 1 → 2" in out
    assert draft(root, "drop", "vision-lab")[2] == "1 quota is in your draft now.\n"
    assert draft(root, "drop", "vision-lab")[0] == 3
    draft(root, "move", "vision-lab", "--below", "ml")
    code, out, told = draft(root, "apply", "--reason", "Season")
    assert code == 0, told
    assert "vision-lab  below vision → ml" in out
    assert Tenant.objects.get(name="vision-lab").parent.name == "ml"
    assert guaranteed() == 10
    record = AuditRecord.objects.filter(action="tenant.changed").first()
    assert "parent vision → ml" in root("quota", "changes", "--moves")[1]
    words = ("quota", "revert", str(record.pk)[:12], "--reason", "Back")
    assert "dry run" in root(*words, "--dry-run")[2]
    assert root(*words)[1].splitlines()[1].split() == ["parent", "ml", "vision"]
    assert Tenant.objects.get(name="vision-lab").parent.name == "vision"
    assert root(*words)[0] != 0
    assert root("quota", "revert", "ffffffff", "--reason", "x")[0] == 3


def test_a_move_says_where_and_is_refused_with_its_field(root):
    code, _, told = draft(root, "move", "vision-lab")
    assert (code, "--below" in told) == (2, True)
    assert draft(root, "move", "vision-lab", "--weight", "1e3")[0] == 2
    draft(root, "move", "vision", "--below", "vision-lab")
    code, _, told = draft(root, "apply", "--reason", "r")
    assert code != 0
    assert "tenants.0.parent" in told
    assert "which is below it" in told


def test_orders_of_tenants_are_shown(root):
    draft(root, "move", "vision-lab", "--weight", "3")
    made = json.loads(draft(root, "apply", "--reason", "r", "--until", "2h", "-o", "json")[1])
    assert "vision-lab weight 1 → 3" in root("quota", "orders")[1]
    out = root("quota", "order", "show", made["order"]["id"])[1]
    assert "vision-lab weight 1 → 3 -" in " ".join(out.split())
