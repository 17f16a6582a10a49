"""Kant's requests take effect exactly once, whatever happens to the servers meanwhile."""

import time

from scheduling.kube.seam import NodeSeen, PodSeen, Result
from tests.kube.api import eventually
from tests.kube.test_contract_effects import create

FROZEN_S = 3.0


def once_each(place, door, effects):
    """Check that each pod exists once, is bound, and is the one that was reported."""
    outcomes = [door.outcome(effect, timeout=120.0) for effect in effects]
    assert {each.result for each in outcomes} == {Result.BOUND}, outcomes
    pods = {p["metadata"]["name"]: p for p in place.api.ok("GET", place.pods)["items"]}
    assert len(pods) == len(effects)
    for effect, outcome in zip(effects, outcomes, strict=True):
        assert pods[effect.name]["metadata"]["uid"] == outcome.uid
        assert pods[effect.name]["spec"]["nodeName"] == place.node


def test_a_store_that_does_not_answer_for_a_while(place, door):
    effects = [create(place, f"worker-{i}") for i in range(30)]
    place.server.freeze(frozen=True)
    try:
        door.gateway.submit(effects)
        time.sleep(FROZEN_S)
    finally:
        place.server.freeze(frozen=False)
    once_each(place, door, effects)
    place.make_node()
    assert door.until_seen(NodeSeen, place.node)
    place.make_pod("after")
    assert door.until_seen(PodSeen, "after")


def test_a_storm_of_429_is_sat_out(place, door):
    before = place.server.turned_away()
    place.server.turn_away(most=True)
    try:
        effects = [create(place, f"worker-{i}") for i in range(30)]
        door.gateway.submit(effects)
        eventually(lambda: place.server.turned_away() > before)
    finally:
        place.server.turn_away(most=False)
    once_each(place, door, effects)
