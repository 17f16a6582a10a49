"""Dominant share of each tenant, by weight, past use counted with a half-life.

A tenant's share of a GPU model is what it holds over the capacity; with a half-life it is the
average of that over the past, older use counting half as much every half-life. The dominant
share is the largest over the models, divided by the tenant's weight.
"""

import math
from collections.abc import Mapping

from scheduling.engine.types import MILLI, Tenant


class Usage:
    """What every tenant holds, and held, by GPU model (milli-GPU)."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], int] = {}
        self._past: dict[tuple[str, str], float] = {}
        self._at: float | None = None

    def change(self, tenant: str, model: str, milli: int) -> None:
        key = (tenant, model)
        held = self.held.get(key, 0) + milli
        if held:
            self.held[key] = held
        else:
            self.held.pop(key, None)

    def pass_time(self, now: float, half_life_s: float) -> None:
        """Let the time since the last call pass, in which nothing changed."""
        if self._at is not None and half_life_s > 0 and now > self._at:
            kept = math.exp2(-(now - self._at) / half_life_s)
            for key in sorted(self._past.keys() | self.held.keys()):
                left = self._past.get(key, 0.0) * kept + self.held.get(key, 0) * (1 - kept)
                self._past[key] = left
        self._at = now

    def shares(
        self, tenants: Mapping[str, Tenant], capacity: Mapping[str, int], half_life_s: float
    ) -> dict[str, float]:
        """Dominant share by tenant; `capacity` is GPUs by model. Who holds nothing has 0."""
        amounts: Mapping[tuple[str, str], float] = self._past if half_life_s > 0 else self.held
        found: dict[str, float] = {}
        for (tenant, model), milli in amounts.items():
            if (known := tenants.get(tenant)) is not None and capacity.get(model):
                share = milli / MILLI / capacity[model] / max(known.weight, 1e-9)
                found[tenant] = max(found.get(tenant, 0.0), share)
        return found
