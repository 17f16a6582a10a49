"""Which taints a toleration covers, as Kubernetes defines it."""

from itertools import product

import pytest

from scheduling.engine.cluster.constraints import blocking_taint, tolerates
from scheduling.engine.types import Taint, Toleration

EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
TAINTS = tuple(Taint(*parts) for parts in product(("team", "rack"), ("", "a", "b"), EFFECTS))


def covered(toleration: Toleration) -> set[Taint]:
    return {taint for taint in TAINTS if tolerates(toleration, taint)}


def of(*, key: str = "", value: str | None = None, effect: str = "") -> set[Taint]:
    """Return the taints with this key, value and effect; an omitted one matches any."""
    return {
        taint
        for taint in TAINTS
        if key in ("", taint.key) and value in (None, taint.value) and effect in ("", taint.effect)
    }


@pytest.mark.parametrize("effect", ["", *EFFECTS])
def test_a_toleration_covers_exactly_the_taints_that_it_names(effect: str) -> None:
    everything = Toleration("", "Exists", "", effect)
    assert covered(everything) == of(effect=effect)
    assert covered(Toleration("team", "Exists", "", effect)) == of(key="team", effect=effect)
    for value in ("", "a"):
        one = Toleration("team", "Equal", value, effect)
        assert covered(one) == of(key="team", value=value, effect=effect)
        # Kubernetes refuses this: without a key, only Exists makes sense.
        assert covered(Toleration("", "Equal", value, effect)) == set()


def test_only_two_effects_keep_pods_away() -> None:
    for taint in TAINTS:
        assert (blocking_taint([taint], ()) is taint) == (taint.effect != "PreferNoSchedule")


def test_each_taint_needs_a_toleration_of_its_own() -> None:
    team, rack = Taint("team", "a", "NoExecute"), Taint("rack", "b", "NoExecute")
    only = (Toleration("team", "Exists"),)
    assert blocking_taint([team], only) is None
    assert blocking_taint([team, rack], only) is rack
    assert blocking_taint([team, rack], (*only, Toleration("rack", "Equal", "b"))) is None
    assert blocking_taint([team, rack], (Toleration("", "Exists"),)) is None
