"""Reverting a quota change without a browser: preview, record, rights and conflicts."""

import html
import re
import uuid
from dataclasses import replace

import pytest

from tenants.models import AuditRecord, GpuType, Quota, Tenant, User
from tenants.services.quota_terms import QuotaChange, QuotaTerms
from tenants.services.quotas import change_quota, delete_quota

LIST = "/quotas/changes/"


def quota(tenant: str = "vision") -> Quota:
    return Quota.objects.get(tenant__name=tenant, gpu_type__name="H200")


def change(who: str, tenant: str = "vision", guaranteed: int = 120, **more) -> AuditRecord:
    """Set a quota as a user; return the record of the change."""
    now = Quota.objects.filter(tenant__name=tenant, gpu_type__name="H200").first()
    terms = QuotaTerms.of(now) if now else QuotaTerms(0)
    change_quota(
        User.objects.get(username=who),
        QuotaChange(
            Tenant.objects.get(name=tenant),
            GpuType.objects.get(name="H200"),
            now.version if now else 0,
            "Season",
            "page",
        ),
        replace(terms, **{"guaranteed": 1000 * guaranteed, **more}),
    )
    return AuditRecord.objects.first()


def withdraw(who: str, tenant: str = "vision") -> AuditRecord:
    now = quota(tenant)
    actor = User.objects.get(username=who)
    delete_quota(actor, QuotaChange(now.tenant, now.gpu_type, now.version, "x", "page"))
    return AuditRecord.objects.first()


def url(record: AuditRecord) -> str:
    return f"{LIST}{record.pk}/revert/"


def plain(answer) -> str:
    text = re.sub(r"<(svg|script).*?</\1>", "", answer.content.decode(), flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", text).split()))


def confirmed(client, record: AuditRecord, reason: str = "Too early"):
    """Send the form of the preview; return the page that it leads to."""
    page = client.get(url(record)).content.decode()
    version = re.search(r'name="version" value="(\d+)"', page)[1]
    return client.post(url(record), {"version": version, "reason": reason}, follow=True)


def test_the_preview_tells_what_reverting_does_now_and_changes_nothing(as_user):
    record = change("vera", guaranteed=140)
    text = plain(as_user("vera").get(url(record)))
    assert "Revert a change of vision / H200 vera made it" in text
    assert "Guaranteed 128 to 140 140 128" in text
    assert "of 140 GPUs After reverting:" in text
    low = change("vera", tenant="speech", guaranteed=1)
    high = change("vera", tenant="speech", guaranteed=60)
    assert "become borrowed and may be reclaimed" in plain(as_user("vera").get(url(high)))
    assert "become borrowed" not in plain(as_user("vera").get(url(record)))
    assert low.after["guaranteed"] == 1
    assert (quota().version, AuditRecord.objects.count()) == (2, 3)


def test_a_revert_is_a_change_of_its_own_that_names_what_it_reverts(as_user):
    record = change("operator", guaranteed=120)
    answer = confirmed(as_user("vera"), record)
    assert "The change of vision / H200 is reverted." in plain(answer)
    assert quota().guaranteed_milli == 128_000
    own = AuditRecord.objects.first()
    assert (own.reverts, own.actor_name, own.reason) == (record, "vera", "Too early")
    assert (own.before["guaranteed"], own.after["guaranteed"]) == (120, 128)
    text = plain(answer)
    assert "reverts the change of operator" in text
    assert "reverted by vera" in text
    assert url(record) not in answer.content.decode()  # one revert is enough
    assert url(own) in answer.content.decode()
    assert "The quota already has its values from before this change." in plain(
        as_user("vera").get(url(record))
    )
    listed = as_user("vera").get("/api/v1/audit").json()["items"]
    assert [item["reverts"] for item in listed] == [str(record.pk), None]
    confirmed(as_user("vera"), own)  # and back again
    assert quota().guaranteed_milli == 120_000


def test_only_what_the_change_set_is_set_back(as_user):
    record = change("vera", guaranteed=120)
    change("vera", guaranteed=120, borrow_limit=16_000)
    confirmed(as_user("vera"), record)
    now = quota()
    assert (now.guaranteed_milli, now.borrow_limit_milli) == (128_000, 16_000)


def test_a_reason_is_asked_for(as_user):
    record = change("vera")
    answer = as_user("vera").post(url(record), {"version": "2", "reason": " "})
    assert answer.status_code == 422
    assert "Say why; it is kept in the audit trail." in plain(answer)
    damaged = as_user("vera").post(url(record), {"version": "x", "reason": "y"})
    assert "The form is damaged." in plain(damaged)
    assert quota().guaranteed_milli == 120_000


def test_a_quota_that_was_given_is_withdrawn_and_given_again(as_user):
    withdrawn = withdraw("operator")
    page = as_user("vera").get(url(withdrawn))
    assert "The quota would be created again" in plain(page)
    confirmed(as_user("vera"), withdrawn)
    assert quota().guaranteed_milli == 128_000
    given = AuditRecord.objects.first()
    assert "The quota would be deleted" in plain(as_user("vera").get(url(given)))
    confirmed(as_user("vera"), given)
    assert not Quota.objects.filter(tenant__name="vision", gpu_type__name="H200").exists()
    assert AuditRecord.objects.first().reverts == given
    assert ("The quota is already gone, as before this change.") in plain(
        as_user("vera").get(url(given))
    )


def refusal(client, record: AuditRecord) -> str:
    """Return why a change cannot be reverted; the page offers no revert, and a forged one does
    nothing."""
    before = list(Quota.objects.values_list("id", "version", "guaranteed_milli"))
    page = client.get(url(record))
    assert 'name="version"' not in page.content.decode()
    sent = client.post(url(record), {"version": "2", "reason": "By force"})
    assert sent.status_code == 422
    assert list(Quota.objects.values_list("id", "version", "guaranteed_milli")) == before
    told = re.search(r"It cannot be reverted\. (.*?)(?: Back to|  |$)", plain(page))
    assert told
    return told[1]


def test_a_later_change_of_the_same_field_is_named_not_overwritten(as_user):
    record = change("vera", guaranteed=120)
    later = change("operator", guaranteed=100)
    at = f"{later.at:%Y-%m-%d %H:%M:%S} UTC"
    text = refusal(as_user("vera"), record)
    assert "Guaranteed was set to 120 by this change and is 100 now." in text
    assert f"operator changed it at {at}. Revert that first, or edit the quota." in text
    confirmed(as_user("vera"), later)
    confirmed(as_user("vera"), record)
    assert quota().guaranteed_milli == 128_000


def test_what_is_gone_since_is_named(as_user):
    record = change("operator")
    withdraw("operator")
    text = refusal(as_user("vera"), record)
    assert "The quota has been deleted since. operator changed it at" in text
    GpuType.objects.filter(name="H200").update(name="H200-old")
    assert "GPU type “H200” has been deleted since" in refusal(as_user("vera"), record)
    AuditRecord.objects.filter(pk=record.pk).update(tenant=None)
    assert "Tenant “vision” and its quotas have been deleted since" in refusal(
        as_user("operator"), record
    )
    assert as_user("vera").get(url(record)).status_code == 404


def test_a_quota_that_is_there_again_is_not_given_twice(as_user):
    withdrawn = withdraw("operator")
    change("operator", guaranteed=50)
    text = refusal(as_user("vera"), withdrawn)
    assert "The quota exists again: 50 GPUs guaranteed, shared. operator changed it at" in text


def test_sums_that_no_longer_hold_are_told(as_user):
    record = change("vera", guaranteed=60)
    change("vera", tenant="nlp", guaranteed=190)
    assert "are guaranteed to “research” above them" in refusal(as_user("vera"), record)


def test_somebody_faster_is_told_and_what_would_happen_now_is_shown(as_user):
    record = change("vera", guaranteed=120)
    change("operator", guaranteed=120, borrow_limit=8_000)
    answer = as_user("vera").post(url(record), {"version": "2", "reason": "Too early"})
    assert answer.status_code == 422
    assert "Somebody has changed this quota in the meantime." in plain(answer)
    assert 'name="version" value="3"' in answer.content.decode()
    assert 'value="Too early"' in answer.content.decode()
    assert quota().guaranteed_milli == 120_000


def test_only_who_may_edit_the_quota_may_revert_its_changes(as_user):
    record = change("operator", tenant="research", guaranteed=300)
    client = as_user("vera")  # tenant admin of research, whose own quota only others set
    assert "research / H200" in client.get(LIST).content.decode()
    assert url(record) not in client.get(LIST).content.decode()
    assert "Only operators and tenant admins of a tenant above" in refusal(client, record)
    assert url(record) in as_user("operator").get(LIST).content.decode()
    for user in ("piet", "erin"):
        assert as_user(user).get(url(record)).status_code == 404
    assert as_user("operator").get(f"{LIST}{uuid.uuid4()}/revert/").status_code == 404


@pytest.mark.parametrize("tenant", ["law", "search"])
def test_changes_of_a_tenant_nobody_knows_are_not_called_none(as_user, tenant):
    change("vera")
    text = plain(as_user("vera").get(f"{LIST}?tenant={tenant}"))
    assert f"There is no tenant “{tenant}” that you may see" in text
    assert "has been changed yet" not in text
    known = plain(as_user("vera").get(f"{LIST}?tenant=nlp"))
    assert "No quota of nlp has been changed yet" in known
