"""How the page of plans for whole nodes describes an order."""

from datetime import UTC, datetime

import pytest

from metrics.pages.nodes.plans import ShownPlan
from scheduling.models import PlanOrder


@pytest.mark.parametrize(
    ("starts", "ends", "when"),
    [
        ((4, 18, 0), (4, 18, 15), "Fri 2030-01-04 18:00 UTC until 18:15"),
        ((4, 23, 50), (5, 0, 5), "Fri 2030-01-04 23:50 UTC until Sat 2030-01-05 00:05 UTC"),
        ((4, 18, 0), (11, 18, 15), "Fri 2030-01-04 18:00 UTC until Fri 2030-01-11 18:15 UTC"),
    ],
)
def test_the_end_has_its_day_where_it_is_another(starts, ends, when):
    of = {"starts_at": starts, "ends_at": ends}
    times = {name: datetime(2030, 1, *at, tzinfo=UTC) for name, at in of.items()}
    assert ShownPlan(PlanOrder(**times)).when == when
