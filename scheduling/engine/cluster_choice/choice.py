"""Choose one of several clusters for a job, and decide when it moves (docs/decisions/0075).

Pure functions. The caller passes what is known of each cluster for this job; nothing unknown is
guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduling.engine.native import copied_by_fields

# Starts this close to the first one count as equal: topology and labels decide between them.
TIE_S = 60.0
# A waiting job moves only if it starts sooner by this much, and by this share of its wait.
MIN_GAIN_S = 120.0
MIN_GAIN_SHARE = 0.25
# A job stays at least this long on a cluster, and twice as long after each move, up to MOST_DOUBLED
# doublings.
MIN_STAY_S = 30.0
MOST_DOUBLED = 6


@dataclass(frozen=True, slots=True)
class ClusterOutlook:
    """What is known of a cluster for one job.

    `starts_now`: the job would start now, within quota and without passing a waiting job.
    `start_at`: otherwise, its expected start (seconds since the epoch); None = unknown.
    `why`: why it does not start now.
    `silent`: why nothing is known of the cluster at present; "" = the cluster has reported.
    `refused`: why the job cannot run there at all; "" = it can.
    `groups`: over how many groups of its preferred network level the pods would be spread; 0 = it
    prefers no level, or the number is unknown.
    `labels`: how many of the job's preferred labels the cluster has.
    `room`: GPU-milli of the job's models that nobody holds or waits for; for a job without GPUs,
    milli-CPU.
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
    """The cluster that a job goes to, and why, in one sentence."""

    name: str
    summary: str


copied_by_fields(ClusterOutlook, ClusterChosen)


def choose(outlooks: Sequence[ClusterOutlook], now: float) -> ClusterChosen | None:
    """Return the cluster on which the job starts first; None if it can run on none.

    Silent clusters are passed over as long as another one has reported. Among equal starts, the
    choice goes by fewer groups of the preferred level, then more preferred labels, then more room,
    then name.
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
    """Whether a job that has waited `here` for `stayed_s` seconds should move `there`.

    `moves`: how often it has moved before.
    """
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
    """Return the clusters on which the job starts first, as far as that is known."""
    if at_once := [o for o in heard if o.starts_now]:
        return at_once
    starts = [o.start_at for o in heard if o.start_at is not None]
    if not starts:
        return list(heard)
    until = min(starts) + TIE_S
    return [o for o in heard if o.start_at is not None and o.start_at <= until]


def _preference(o: ClusterOutlook) -> tuple[int, int, float, str]:
    # An unknown number of groups is worse than any known number.
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
    """Say what decided between equal starts."""
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
