"""The set-up that every process of Kant does before its own work begins."""

import gc


def test_what_a_start_imports_is_not_looked_through_for_garbage() -> None:
    assert gc.get_threshold()[0] > 10_000
    assert gc.get_freeze_count() > 100_000
