"""`kant quota set` against a real Kant server."""

import json
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from kant.client import places
from kant.client.api import Api
from kant.client.previews import kept
from scheduling.models import Cluster, Job, PodSet
from tenants.models import AuditRecord, ChangePreview, GpuType, Quota, Tenant
from tenants.services.previews.happened import tell_what_happened
from tests.scheduling.test_rehearsal import runs
from tests.tenants.test_api_quotas import running


@pytest.fixture
def root(kant):
    """Tenant admin of ml; vision is below it and has 8 H100."""
    kant.sign_in("ops")
    for tenant, gpus in (("ml", "16"), ("vision", "8")):
        code, _, told = kant(
            "quota", "set", tenant, "H100", "--guaranteed", gpus, "--reason", "Start"
        )
        assert code == 0, told
    return kant.sign_in("root")


def quota() -> Quota:
    return Quota.objects.get(tenant__name="vision")


def test_what_is_given_is_set_and_the_rest_stays(root):
    code, out, told = root(
        "quota", "set", "vision", "H100", "--borrow-limit", "4", "--reason", "Bounded"
    )
    assert (code, told) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["BEFORE", "AFTER"],
        ["guaranteed", "8", "8"],
        ["mode", "shared", "shared"],
        ["borrow_limit", "any", "4"],
        ["lend_limit", "any", "any"],
        ["used", "0", "0"],
        ["borrowed", "0", "0"],
        ["lent", "0", "0"],
    ]
    now = quota()
    assert (now.guaranteed_milli, now.borrow_limit_milli, now.lend_limit_milli) == (
        8000,
        4000,
        None,
    )
    record = AuditRecord.objects.first()
    assert (record.reason, record.source, record.actor_name) == ("Bounded", "api", "root")
    assert root("quota", "set", "vision", "H100", "--borrow-limit", "any", "--reason", "x")[0] == 0
    assert quota().borrow_limit_milli is None


def test_an_isolated_quota_loses_its_limits(root):
    flags = ("quota", "set", "vision", "H100", "--reason", "x")
    assert root(*flags, "--borrow-limit", "4", "--lend-limit", "2")[0] == 0
    code, out, _ = root(*flags, "--mode", "isolated", "-o", "json")
    told = json.loads(out)
    assert (code, told["warnings"]) == (0, [])
    assert (told["before"]["mode"], told["before"]["lend_limit"]) == ("shared", 2)
    assert (told["after"]["mode"], told["after"]["lend_limit"]) == ("isolated", None)


def test_a_dry_run_changes_nothing(root):
    flags = ("quota", "set", "vision", "H100", "--guaranteed", "12", "--reason", "x")
    code, out, told = root(*flags, "--dry-run")
    assert (code, told) == (0, "Nothing was changed: this was a dry run.\n")
    assert out.splitlines()[1].split() == ["guaranteed", "8", "12"]
    assert (quota().guaranteed_milli, quota().version) == (8000, 1)
    assert root(*flags)[0] == 0
    assert root(*flags)[2] == "Nothing to revert: it already has the old value.\n"


def test_a_quota_is_given_where_there_is_none(root):
    root.sign_in("ops")
    code, out, _ = root("quota", "set", "law", "H100", "--guaranteed", "2.5", "--reason", "New")
    assert code == 0
    assert out.splitlines()[1].split() == ["guaranteed", "-", "2.5"]
    code, _, told = root("quota", "set", "law", "A100", "--mode", "shared", "--reason", "x")
    assert (code, told) == (2, "law has no quota for A100: give --guaranteed too.\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("vision", "H100", "--guaranteed", "900"), 2, "guaranteed: H100: 900 GPUs"),
        (("vision", "H100", "--lend-limit", "9"), 2, "lend_limit: 9 GPUs is more than"),
        (("vision", "H100", "--guaranteed", "many"), 2, "'many' is not a number of GPUs"),
        (("vision", "H100", "--guaranteed", "nan"), 2, "'nan' is not a number of GPUs"),
        (("vision", "H100", "--mode", "mixed"), 2, "invalid choice"),
        (("vision", "H100"), 2, "Nothing to set."),
        (
            ("ml", "H100", "--guaranteed", "20"),
            4,
            "Only operators and tenant admins of a tenant above",
        ),
        (("law", "H100", "--guaranteed", "1"), 3, "There is no tenant “law”"),
        (("vision", "B200", "--guaranteed", "1"), 3, "There is no GPU type “B200”"),
        (("no/such", "ä b", "--guaranteed", "1"), 3, "No such thing"),
    ],
)
def test_what_is_wrong_is_told(root, words, code, text):
    got, out, told = root("quota", "set", *words, "--reason", "x")
    assert (got, out) == (code, ""), told
    assert text in told


def test_a_reason_is_asked_for(root):
    code, _, told = root("quota", "set", "vision", "H100", "--guaranteed", "1")
    assert (code, "--reason" in told) == (2, True)
    code, _, told = root("quota", "set", "vision", "H100", "--guaranteed", "1", "--reason", " ")
    assert (code, "reason" in told) == (2, True)


def test_somebody_faster_is_not_overwritten(root, monkeypatch):
    read = places.now_or_none

    def slow(api: Api, path: str):
        found = read(api, path)
        Quota.objects.filter(pk=quota().pk).update(guaranteed_milli=4000, version=2)
        return found

    monkeypatch.setattr(places, "now_or_none", slow)
    code, out, told = root("quota", "set", "vision", "H100", "--guaranteed", "1", "--reason", "x")
    assert (code, out) == (1, "")
    assert "is at version 2; you expected version 1" in told
    assert quota().guaranteed_milli == 4000


def test_who_borrows_from_whom_is_what_the_server_says(root):
    running(root.org, "vision", "big", 12_000)
    code, out, _ = root("quotas", "-t", "vision")
    assert code == 0
    heads, row = (re.split(r"  +", line) for line in out.splitlines())
    told = dict(zip(heads, row, strict=True))
    assert (told["USED"], told["BORROWED"], told["FROM"], told["LENT"]) == ("12", "4", "ml 4", "0")
    root.sign_in("ada")  # of vision alone
    assert "(others) 4" in root("quotas", "-t", "vision")[1]


def test_a_change_is_found_and_taken_back(root):
    assert root("quota", "set", "vision", "H100", "--guaranteed", "12", "--reason", "More")[0] == 0
    code, out, _ = root("quota", "changes", "-t", "vision", "--limit", "1")
    heads, line = out.splitlines()
    assert (code, heads.split()[0]) == (0, "ID")
    for told in ("root", "vision / H100", "guaranteed 8 → 12", "More"):
        assert told in line
    empty = root("quota", "revert", "", "--reason", "x")
    assert (empty[0], "Name a change by its id" in empty[2]) == (2, True)
    change = line.split()[0]
    flags = ("quota", "revert", change, "--reason", "Too early")
    code, out, told = root(*flags, "--dry-run")
    assert (code, told) == (0, "Nothing was changed: this was a dry run.\n")
    assert out.splitlines()[1].split() == ["guaranteed", "12", "8"]
    assert quota().guaranteed_milli == 12_000
    code, out, told = root(*flags)
    assert (code, told, quota().guaranteed_milli) == (0, "", 8000)
    assert "Too early (a revert)" in root("quota", "changes")[1]
    assert root(*flags)[0] == 1
    code, out, told = root("quota", "revert", "zzz", "--reason", "x")
    assert (code, out) == (3, "")
    assert "There is no change 'zzz'" in told


def test_a_quota_that_was_given_is_withdrawn_and_given_again(root):
    record = AuditRecord.objects.filter(subject="vision / H100").get()
    code, out, _ = root("quota", "revert", str(record.pk), "--reason", "Not yet")
    assert (code, out.splitlines()[1].split()) == (0, ["guaranteed", "8", "-"])
    assert not Quota.objects.filter(tenant__name="vision").exists()
    gone = AuditRecord.objects.filter(action="quota.deleted").get()
    code, out, _ = root("quota", "revert", str(gone.pk), "--reason", "Now", "-o", "json")
    told = json.loads(out)
    assert (code, told["before"], told["after"]["guaranteed"]) == (0, None, 8)


@pytest.fixture
def vision_waits(root):
    """Vision has no quota, law borrows all that is free, and two jobs of vision wait."""
    heard = timezone.now() + timedelta(hours=1)
    Cluster.objects.update(connected=True, last_cycle_at=heard)
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=0, borrow_limit_milli=0)
    job = Job.objects.create(
        name="waits", tenant=Tenant.objects.get(name="vision"), cluster=Cluster.objects.get(),
        submitted_at=timezone.now(), state="PENDING", gpu_milli=8000,
    )  # fmt: skip
    PodSet.objects.create(job=job, index=0, name="w", count=1, gpus=8, gpu_models=["H100"])
    return root


def test_a_preview_says_what_it_would_do_to_jobs_and_changes_nothing(vision_waits):
    words = ("quota", "set", "vision", "H100", "--guaranteed", "8", "--preview")
    code, out, told = vision_waits(*words)
    assert code == 0, told
    assert [line.split()[:5] for line in out.splitlines()] == [
        ["EFFECT", "JOB", "TENANT", "USER", "GPUS"],
        ["starts", "waits", "vision", "-", "8"],
    ]
    assert "Nothing was changed." in told
    assert quota().guaranteed_milli == 0
    code, out, _ = vision_waits(*words, "-o", "json")
    found = json.loads(out)
    assert (code, found["counts"]["starts"], found["starts"][0]["name"]) == (0, 1, "waits")
    _, _, told = vision_waits(*words[:5], "0", "--preview")
    assert "No waiting or running job changes." in told


def test_an_act_on_jobs_is_previewed_and_names_who_refuses_it(vision_waits):
    """A second job of vision waits behind the first; with quota for one job it would be next."""
    Quota.objects.filter(tenant__name="vision").update(guaranteed_milli=8000)
    first = Job.objects.get(name="waits")
    second = Job.objects.create(
        name="next", tenant=first.tenant, cluster=first.cluster,
        submitted_at=timezone.now(), state="PENDING", gpu_milli=8000,
    )  # fmt: skip
    PodSet.objects.create(job=second, index=0, name="w", count=1, gpus=8, gpu_models=["H100"])
    code, out, told = vision_waits("hold", "waits", "--preview")
    assert code == 0, told
    assert ["starts", "next", "vision"] in [line.split()[:3] for line in out.splitlines()]
    assert "Nothing was changed." in told
    code, out, _ = vision_waits("cancel", "waits", "--preview", "-o", "json")
    assert (code, json.loads(out)["starts"][0]["name"]) == (0, "next")
    code, _, told = vision_waits("change", "next", "--priority", "9", "--preview")
    assert code == 0, told
    code, _, told = vision_waits("release", "waits", "next", "--preview")
    assert (code, told.count("The job is not on hold.")) == (1, 2)
    assert set(Job.objects.values_list("state", "held", "priority")) == {("PENDING", False, 0)}


def test_changes_say_what_was_told_and_what_happened(vision_waits):
    words = ("quota", "set", "vision", "H100", "--guaranteed", "8")
    heads = vision_waits("quota", "changes")[1].splitlines()[0]
    assert "TOLD BEFORE" not in heads
    assert vision_waits(*words, "--preview")[0] == 0
    assert vision_waits(*words, "--reason", "Season")[0] == 0

    def newest():
        heads, line, *_ = vision_waits("quota", "changes", "-t", "vision")[1].splitlines()
        names = ("WHY", "TOLD BEFORE", "IN THE HOUR AFTER")
        begins = [heads.index(name) for name in names]
        return [line[a:b].strip() for a, b in zip(begins, [*begins[1:], None], strict=True)]

    assert newest() == ["Season", "1 starts at once", "an hour after the change"]
    ChangePreview.objects.update(changed_at=timezone.now() - timedelta(minutes=61))
    tell_what_happened()
    assert newest() == ["Season", "1 starts at once", "0 started (0 of 1 told)"]
    found = json.loads(vision_waits("quota", "changes", "-o", "json")[1])
    assert found[0]["preview"]["told"]["counts"]["starts"] == 1


def test_all_that_was_told_and_happened_is_said():
    counts = {"starts": 2.0, "stops": 1.0, "lost_gpu_s": 9000.0, "sooner": 4.0, "later": 0.0,
              "impossible": 1.0}  # fmt: skip
    after = {
        "reverted": {"by": "vera"}, "started": 3, "told_to_start": 2, "told_and_started": 1,
        "stopped": 1, "reclaimed": 1, "lost_gpu_s": 1440.0,
        "borrowed": [{"tenant": "law", "gpu_type": "H100", "before": 0.0, "after": 4.5}],
    }  # fmt: skip
    change = {"preview": {"told": {"counts": counts}, "happened": after}}
    assert kept.told(change) == (
        "2 start at once, 1 stops (2.5 GPU-h lost), 4 sooner, 1 can never start"
    )
    assert kept.happened(change) == (
        "reverted by vera, 3 started (1 of 2 told), 1 preempted (1 reclaimed, 0.4 GPU-h lost), "
        "law borrows 4.5 H100 (0 before)"
    )
    nothing = {"preview": {"told": {"counts": dict.fromkeys(counts, 0.0)}, "happened": None}}
    assert kept.told(nothing) == "no effect on jobs"


def test_another_number_of_pods_is_previewed(kant, vision_waits):
    law, cluster = Tenant.objects.get(name="law"), Cluster.objects.get()
    here = SimpleNamespace(tenants={"law": law}, cluster=cluster)
    ops = kant.sign_in("ops")
    web = runs(here, ["h000", "h001"], gang=False, declared_s=7200)
    code, out, told = ops("scale", web.name, "1", "--preview")
    assert code == 0, told
    assert ["resized", web.name, "law", "-", "16", "1", "pod", "leaves", "at", "once"] in [
        line.split() for line in out.splitlines()
    ]
    no_quota = "2 pods more, which get no places: Tenant law has no quota for H100."
    assert no_quota in ops("scale", web.name, "4", "--preview")[1]
    Quota.objects.update_or_create(
        tenant=law, gpu_type=GpuType.objects.get(name="H100"), defaults={"guaranteed_milli": 32000}
    )
    assert "2 pods more at once" in ops("scale", web.name, "4", "--preview")[1]
    code, out, _ = ops("scale", web.name, "6", "--preview", "-o", "json")
    assert (code, json.loads(out)["resizes"][0]["more"]) == (0, 4)
    assert web.pod_sets.get().count == 2
