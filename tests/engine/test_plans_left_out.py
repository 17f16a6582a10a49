"""The bound leaves out no preemption plan that would succeed: a scheduler that makes every plan
finds none.

The bound can only be replaced in the interpreted core, and `make test` runs the machine of random
steps with the compiled core only. Hence a file of its own.
"""

import pytest

from scheduling.engine.preemption import preempt
from tests.cases import seeds
from tests.engine import test_cycle_machine as machine
from tests.engine.test_cycle_machine import _without_bounds  # noqa: F401

pytestmark = pytest.mark.interpreted


@pytest.mark.parametrize("seed", seeds(12))
def test_no_plan_that_is_left_out_would_succeed(seed: int) -> None:
    assert preempt.may_succeed_at.__name__ == "asked"
    machine.test_a_busy_cluster_keeps_every_rule(1000 + seed)
