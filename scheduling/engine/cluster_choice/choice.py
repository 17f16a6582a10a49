"""Which of several clusters a job goes to, and when it moves on (docs/decisions/0075). Pure.

Who asks tells of each cluster what is known of it for this job; what is not known is not guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.engine.native import copied_by_fields

# Starts that are this close to the first one are equal: topology and labels decide between them.
TIE_S = 60.0
# A job that waits moves where that is worth so much, and this part of its wait.
MIN_GAIN_S = 120.0
MIN_GAIN_SHARE = 0.25
# It stays so long where it was sent, twice as long after each move, up to MOST_DOUBLED times.
MIN_STAY_S = 30.0
MOST_DOUBLED = 6


@dataclass(frozen=True, slots=True)
class ClusterOutlook:
    """What is known of a cluster for one job.

    `starts_now`: within quota, and before nobody who waits there. `start_at`: else, when it is
    expected to start, seconds since the epoch; None = not known. `why`: why not now. `silent`: why
    nothing is known of the cluster now; "" = it was heard of. `refused`: why the job cannot run
    there at all; "" = it can. `groups`: over how many groups of the network level that it prefers
    its pods would be; 0 = it prefers none, or not known. `labels`: how many of the labels that it
    prefers the cluster has. `room`: GPU-milli of its models that nobody holds or waits for, of a
    job without GPUs milli-CPU.
    """

    name: str
    starts_now: bool = False
    start_at: float | None = None
    why: str = ""
    silent: str = ""
    refused: str = ""
    groups: int = 0
    labels: int = 0
    room: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterChosen:
    """Where a job goes, and why in a sentence."""

    name: str
    summary: str


copied_by_fields(ClusterOutlook, ClusterChosen)


def choose(outlooks: Sequence[ClusterOutlook], now: float) -> ClusterChosen | None:
    """The cluster on which the job starts first; None where it can run on none.

    A cluster that is silent is passed over while another one can be asked. Of equal starts the one
    with fewer groups of the preferred level, then with more of the preferred labels, then with
    more room, then the first by name.
    """
    able = sorted((o for o in outlooks if not o.refused), key=lambda o: o.name)
    heard = [o for o in able if not o.silent] or able
    if not heard:
        return None
    first = _first(heard)
    best = min(first, key=_preference)
    return ClusterChosen(best.name, _summary(best, first, able, now))


def gains(
    here: ClusterOutlook, there: ClusterOutlook, stayed_s: float, moves: int, now: float
) -> bool:
    """Whether a job that waits `here` since `stayed_s` seconds is to wait `there` from now on.
    `moves`: how often it has moved before."""
    if there.refused or there.silent:
        return False
    if here.silent or here.refused:
        return True
    if here.starts_now or stayed_s < MIN_STAY_S * 2 ** min(moves, MOST_DOUBLED):
        return False
    if there.starts_now:
        starts = now
    elif there.start_at is not None and here.start_at is not None:
        starts = there.start_at
    else:
        return False
    if here.start_at is None:
        return True
    gain = here.start_at - starts
    return gain > max(MIN_GAIN_S, MIN_GAIN_SHARE * (here.start_at - now))


def labels_in_common(labels: Mapping[str, str], preferred: Mapping[str, str]) -> int:
    return sum(labels.get(label) == value for label, value in preferred.items())


def _first(heard: Sequence[ClusterOutlook]) -> list[ClusterOutlook]:
    """Those on which it starts first, as far as that is known."""
    if at_once := [o for o in heard if o.starts_now]:
        return at_once
    starts = [o.start_at for o in heard if o.start_at is not None]
    if not starts:
        return list(heard)
    until = min(starts) + TIE_S
    return [o for o in heard if o.start_at is not None and o.start_at <= until]


def _preference(o: ClusterOutlook) -> tuple[int, int, float, str]:
    # Not known is worse than known, however many.
    return o.groups or 1_000_000, -o.labels, -o.room, o.name


# --- in words -------------------------------------------------------------------------------------
def _summary(
    best: ClusterOutlook,
    first: Sequence[ClusterOutlook],
    able: Sequence[ClusterOutlook],
    now: float,
) -> str:
    """ "Runs on b: starts there at once; on a in 40 min." """
    where = f"Sent to {best.name}" if best.silent else f"Runs on {best.name}"
    parts = [f"{where}: {_start(best, now)}"]
    equal = [o for o in first if o is not best]
    if equal:
        names = ", ".join(o.name for o in equal)
        parts[0] += f", as on {names}; {_because(best, equal)}"
    rest = [o for o in able if o not in first]
    parts += [f"on {o.name} {_later(o, now)}" for o in rest if not o.silent]
    parts += [f"{o.name} is passed over: {o.silent}" for o in rest if o.silent]
    return "; ".join(parts) + "."


def _because(best: ClusterOutlook, equal: Sequence[ClusterOutlook]) -> str:
    """What decided between equal starts."""
    nearest = min((o.groups for o in equal if o.groups), default=0)
    if best.groups and best.groups < (nearest or 1_000_000):
        groups = "1 network group" if best.groups == 1 else f"{best.groups} network groups"
        return f"its pods are within {groups} there"
    same = [o for o in equal if o.groups == best.groups]
    if best.labels > max((o.labels for o in same), default=-1):
        return "it has more of the labels that the job prefers"
    if best.room > max((o.room for o in same if o.labels == best.labels), default=-1.0):
        return "it has the most room"
    return "it is the first by name"


def _start(o: ClusterOutlook, now: float) -> str:
    if o.silent:
        return o.silent
    if o.starts_now:
        return "starts there at once"
    return f"starts there {_when(o, now)}"


def _later(o: ClusterOutlook, now: float) -> str:
    return "at once" if o.starts_now else _when(o, now)


def _when(o: ClusterOutlook, now: float) -> str:
    """ "in 40 min (behind 64 GPUs that wait)"."""
    at = "at an unknown time" if o.start_at is None else f"in {span(o.start_at - now)}"
    return f"{at} ({o.why})" if o.why else at


def span(seconds: float) -> str:
    """ "under 1 min", "40 min", "3 h", "2 d"."""
    if seconds < 60.0:
        return "under 1 min"
    if seconds < 90 * 60.0:
        return f"{round(seconds / 60.0)} min"
    if seconds < 36 * 3600.0:
        return f"{round(seconds / 3600.0)} h"
    return f"{round(seconds / 86400.0)} d"
