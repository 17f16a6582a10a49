"""A node is deleted while pods are being bound to it."""

import pytest

from scheduling.engine.states import JobEventKind as K
from scheduling.engine.states import JobState as S
from scheduling.models.jobs import PlacementState as P

pytestmark = pytest.mark.live


def test_its_gang_starts_elsewhere_and_nothing_stays_in_halves(world):
    """The bindings take effect, but their replies arrive after the node is gone."""
    pods = 2
    world.fault("slow-replies", verb="bind", count=pods, delay_ms=3_000)
    job = world.submit(pods=pods)
    world.drive(lambda: world.placements(job))
    world.drive(lambda: any(p["spec"].get("nodeName") for p in world.pods().values()))
    gone = world.placements(job)[0].node
    world.call("DELETE", f"/api/v1/nodes/{gone}")
    world.drive(
        lambda: (
            world.state(job) is S.RUNNING
            and {p.node for p in world.placements(job, state=P.RUNNING)}.isdisjoint({gone})
            and len(world.placements(job, state=P.RUNNING)) == pods
        )
    )
    assert K.REQUEUED in world.kinds(job)
    world.drive(lambda: gone not in {p["spec"]["nodeName"] for p in world.pods().values()})
    assert len(world.pods()) == pods
    assert world.audit()["double_holdings"] == []
