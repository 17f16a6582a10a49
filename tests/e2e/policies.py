"""Shared by the tests of the policy pages: going from page to page as a form would."""

import html
import re

from metrics.pages.policies.forms import typed
from scheduling.models import Cluster
from scheduling.services.policies.changes import change_policy, policy_of
from tenants.models import User

URL = "/policies/demo/"
CHECK, SAVE, DRAFT, CHANGES = (f"{URL}{page}/" for page in ("check", "save", "draft", "changes"))


def plain(answer) -> str:
    text = re.sub(r"<(svg|script).*?</\1>", "", answer.content.decode(), flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", text).split()))


def hidden(answer) -> dict[str, str]:
    """Return the hidden fields that a page passes to the next one."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', answer.content.decode())
    return {name: html.unescape(value) for name, value in found if "csrf" not in name}


def sent(answer, **changes) -> dict[str, str]:
    """Return what the page's form would send with some fields changed; None unticks a box."""
    form = answer.context["form"]
    found = hidden(answer) | typed(form, form.shown) | changes
    return {name: value for name, value in found.items() if value is not None}


def checked(client, **changes):
    return client.post(CHECK, sent(client.get(URL), **changes))


def saved(client, check, **more):
    return client.post(SAVE, hidden(check) | {"reason": "Gangs wait"} | more)


def change(document, who="operator", reason="Other reasons"):
    cluster = Cluster.objects.get(name="demo")
    return change_policy(
        User.objects.get(username=who),
        cluster,
        document,
        expected_version=policy_of(cluster).version,
        reason=reason,
        source="api",
    )


def now() -> dict:
    return policy_of(Cluster.objects.get(name="demo")).document
