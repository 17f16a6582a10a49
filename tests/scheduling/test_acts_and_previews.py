"""An act and all of its previews refuse alike, whatever the state is."""

import itertools
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.models import NodeOrder
from tests.scheduling.test_api_nodes import act, preview  # noqa: F401 - fixtures
from tests.scheduling.test_rehearsal import fleet  # noqa: F401 - a fixture

BY = (timezone.now() + timedelta(hours=1)).isoformat()
LATER = (timezone.now() + timedelta(hours=2)).isoformat()
# The acts that bring about the states, and everything that is tried in each state.
STATES = {
    "in service": (),
    "cordoned": (("cordon", {}),),
    "drained": (("drain", {}),),
    "drained by a time": (("drain", {"evict_at": BY}),),
    "cordoned after a drain": (("drain", {}), ("cordon", {})),
    "uncordoned": (("cordon", {}), ("uncordon", {})),
}
ACTS = (
    ("cordon", {}),
    ("drain", {}),
    ("drain", {"evict_at": BY}),
    ("drain", {"evict_at": LATER}),
    ("uncordon", {}),
)
NODES = ("h000", "h999")


@pytest.mark.parametrize("state", STATES)
def test_nodes(fleet, act, preview, state):  # noqa: F811
    refused = 0
    for (verb, body), node in itertools.product(ACTS, NODES):
        NodeOrder.objects.all().delete()
        for done, with_body in STATES[state]:
            assert act("h000", done, **with_body).status_code == 200
        about = f"{verb} {body} of {node}, {state}"
        rehearsed = act(node, verb, dry_run=True, **body)
        previewed = preview(verb, nodes=[node], **body)
        beside = preview(verb, nodes=["h001", node], **body)
        done = act(node, verb, **body)
        assert rehearsed.status_code == done.status_code, about
        if node == "h999":  # named in the address, or in the body
            assert (done.status_code, previewed.status_code) == (404, 422), about
        elif done.status_code != 200:
            assert done.status_code == 409, about
            told = [answer.json()["detail"] for answer in (rehearsed, previewed, done)]
            assert len(set(told)) == 1, f"{about}: {told}"
            refused += 1
            assert beside.status_code == 409, about
        else:
            assert previewed.status_code == 200, f"{about}: {previewed.content}"
            assert (beside.status_code == 200) == (verb != "uncordon"), about
    assert refused == 1
