"""What a preemption costs: the work that its victims lose (paper 3.2.3)."""

from scheduling.engine.types import MILLI

# Losses are counted in thousandths of a GPU-second, so that sums are exact.
_PER_GPU_S = 1000


def cost_of(milli: int, since: float, saved_at: float, now: float) -> float:
    """Return the GPU-seconds since the pods got these milli-GPU or last saved their work."""
    return milli / MILLI * max(0.0, now - max(since, saved_at))


def loss_by(cost: float, milli: int) -> int:
    """Return the loss as an integer; at equal cost, fewer GPUs and fewer units lose less."""
    return round(cost * _PER_GPU_S) + milli // MILLI + 1
