"""How a pass takes up plain pods.

Pods get their places one pass after they were seen, and their jobs are written once, as they are
then. If that is safe, the pass decides first and one statement writes everything. Otherwise its
transaction begins before the decision and ends when that is written.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from django.db import transaction
from django.utils import timezone

from scheduling.services.plain_pods.take_up import TakenUp, take_up, take_up_ahead
from scheduling.services.scheduler.keeper import Led
from scheduling.session.memory.live import Offer


class Taking:
    """Called by a pass that finds pods to take up.

    `taken`: what is to be written of them, None = there were none.
    """

    def __init__(self, led: Led) -> None:
        self.taken: TakenUp | None = None
        self._led = led
        self._transaction = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transaction.__exit__(kind, error, trace)

    def __call__(self, offers: Sequence[Offer]) -> None:
        """Make jobs of pods, and note in the offers what became of them. Raises LeaseLost."""
        led = self._led
        shelf = led.shelf.as_of(led.session.settings)
        self.taken = take_up_ahead(led.lease, offers, timezone.now(), shelf)
        if self.taken is None:
            self._transaction.enter_context(transaction.atomic())
            self.taken = take_up(led.lease, offers, timezone.now(), shelf)
