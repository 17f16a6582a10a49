"""Every page with filters names those that it does not know, whether by name or by value."""

import re

import pytest
from django.urls import URLPattern, get_resolver, reverse
from django.utils import timezone

from scheduling.models import Job
from tenants.models import Tenant
from webhooks.models import Webhook

OTHER = "quite-another"
# A valid value for each path parameter, by the name of the page.
PARTS = {
    "name": {"default": "demo", "tenant": "vision", "queue": "default", "node": "node-005",
             "tenant-members": "vision", "tenant-place": "vision", "tenant-limits": "vision",
             "chart": "waits", "leaf": "leaf-00"},
    "tenant": {"default": "vision"},
    "cluster": {"default": "demo"},
    "gpu_type": {"default": "H200"},
}  # fmt: skip
# Finding nothing is a valid answer to a search; only the cluster, absent here, knows containers.
SEARCHES = {"q", "container"}
THERE_ARE = re.compile(r"There is no filter “[^”]+” here; the filters are ([a-z_, ]+)")
WHOLE = "</html>"  # parts that load into an open page have none
SAID = re.compile(r'<h[12]>([^<]*)</h[12]>|<div class="notice[^>]*>.*?<div>([^<]*)</div>')


def pages(patterns=None):
    """Yield (name, path parameters) of every named page outside of REST."""
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        if not isinstance(entry, URLPattern):
            if entry.namespace is None and str(entry.pattern) != "api/v1/":
                yield from pages(entry.url_patterns)
        elif entry.name:
            yield entry.name, tuple(entry.pattern.converters)


def addresses():
    hook = Webhook.objects.create(
        name="h", url="https://hooks.example.com/k", events=["job.failed"],
        tenant=Tenant.objects.get(name="vision"),
        since=timezone.now(), pending_until=timezone.now(),
    )  # fmt: skip
    known = {"job_id": Job.objects.get(name="train-000").pk, "webhook_id": hook.pk}
    for name, parts in pages():
        found = {}
        for part in parts:
            values = PARTS.get(part, {})
            found[part] = known.get(part) or values.get(name) or values.get("default")
        if None not in found.values():
            yield reverse(name, kwargs=found)


@pytest.fixture
def told(as_user):
    """Return (address, what it says about an unknown parameter) for each page."""
    client, found = as_user("operator"), {}
    for address in addresses():
        answer = client.get(address, {OTHER: "1"}, follow=True)
        is_page = answer.get("Content-Type", "").startswith("text/html")
        # A signed-in user is redirected from there.
        if is_page and not address.startswith("/login/"):
            found[address] = answer.content.decode()
    return found


def test_no_page_passes_over_a_parameter_that_it_does_not_have(as_user, told):
    client = as_user("operator")
    whole = {a: text for a, text in told.items() if client.get(a).status_code == 200}
    assert {"/jobs/", "/replays/", "/replays/new/", "/tenants/", "/policies/demo/"} <= whole.keys()
    assert [
        address
        for address, text in whole.items()
        if WHOLE in text
        and not THERE_ARE.search(text)
        and f"This page has no filter “{OTHER}”" not in text
    ] == []


def test_a_filter_of_any_page_that_names_nothing_is_told_with_what_was_typed(as_user, told):
    filters = {
        address: found[1].split(", ")
        for address, text in told.items()
        if (found := THERE_ARE.search(text))
    }
    assert {"/jobs/", "/events/", "/queues/", "/webhooks/", "/ops/nodes/"} <= filters.keys()
    client, silent = as_user("operator"), []
    for address, names in filters.items():
        for name in names:
            if name in SEARCHES:
                continue
            answer = client.get(address, {name: OTHER}, follow=True)
            text = answer.content.decode()
            if OTHER not in (str(SAID.findall(text)) if answer.status_code == 200 else text):
                silent.append((address, name, answer.status_code))
    assert silent == []
