"""A button leads back to a safe address, whatever its form or URL claims about the list that it
was on."""

import logging
import re

import pytest
from django.urls import reverse

from kant.bodies import MOST_ADDRESS
from metrics.gpu_time.usage import TooManyUsageRows
from tenants.web.pages import LONGEST_ADDRESS
from tests.cases import paired

# Values that no page sends.
FORGED = {
    "too long": f"q={'x' * 20_000}",
    "too long when written out": f"q={'/' * 12_000}",
    "too many": "&".join(f"q{i}=" for i in range(6_000)),
    "of too many equal ones": "q=1&" * 6_000,
    "with NUL": "state=open&q=%00",
    "named by NUL": "%00=1",
}
# Values that come in a URL; longer ones, or those with NUL, are refused before the page is asked.
ADDRESSES = {"too long when written out": f"tenant={'/' * 12_000}&tenant="}
addressed = pytest.mark.parametrize("query", ADDRESSES.values(), ids=ADDRESSES)


@pytest.fixture(autouse=True)
def _nothing_failed(caplog):
    yield
    told = [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]
    assert not told, [record.getMessage()[:200] for record in told]


BUTTONS = [
    ("jobs-columns", {"column": ["gpus"]}),
    ("jobs-columns", {"usual": "1"}),
    ("jobs-columns", {}),
    ("jobs-view-save", {"name": "mine", "columns": "gpus"}),
    ("jobs-view-remove", {"name": "none"}),
    ("jobs-chosen", {"act": "hold", "id": ["none"]}),
]


@pytest.mark.parametrize(("button", "query"), paired(BUTTONS, FORGED), ids=str)
def test_a_forged_way_back_leads_to_the_list_without_filters(as_user, button, query):
    (view, fields), query = button, FORGED[query]
    answer = as_user("vik").post(reverse(view), {**fields, "back": query})
    assert (answer.status_code, answer["Location"]) == (302, "/jobs/")


@addressed
def test_who_signs_in_comes_back_to_the_list_without_filters(client, played, query):
    answer = client.get(f"/jobs/?{query}")
    assert (answer.status_code, answer["Location"]) == (302, "/login/?next=/jobs/")
    answer = client.get("/jobs/?state=open")
    assert answer["Location"] == "/login/?next=/jobs/%3Fstate%3Dopen"
    answer = client.get("/admin/login/", {"next": f"/jobs/?{query}"})
    assert answer["Location"] == "/login/?next=/jobs/"
    answer = client.get("/admin/login/", {"next": "/" * 12_000})
    assert answer["Location"] == "/login/?next=/"


def too_many(*_asked):
    raise TooManyUsageRows(1)


@addressed
@pytest.mark.parametrize(
    ("user", "method", "page", "back", "most"),
    [
        ("operator", "get", "/jobs/jobs.csv", "/jobs/", "scheduling.pages.jobs.export.MOST_ROWS"),
        ("operator", "get", "/usage/usage.csv", "/usage/", "metrics.gpu_time.usage.usage"),
        ("operator", "post", "/quotas/discard/", "/quotas/", ""),
        ("operator", "post", "/quotas/", "/quotas/", ""),
    ],
    ids=str,
)
def test_a_long_address_leads_to_the_list_without_filters(
    as_user, monkeypatch, user, method, page, back, most, query
):
    if most.endswith("usage"):
        monkeypatch.setattr(most, too_many)
    elif most:
        monkeypatch.setattr(most, 0)
    client = as_user(user)
    answer = getattr(client, method)(f"{page}?{query}")
    assert (answer.status_code, answer["Location"]) == (302, back)


def test_no_way_back_is_longer_than_kant_takes():
    assert LONGEST_ADDRESS == MOST_ADDRESS


def test_the_forms_send_what_is_looked_at(as_user):
    page = as_user("vik").get("/jobs/?state=open&q=a%26b").content.decode()
    assert len(set(re.findall(r'name="back" value="([^"]*)"', page))) == 1
