"""What the pods of a job printed, read from its cluster for anyone who may read the job."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from django.db import close_old_connections
from django.db.models import Max

from scheduling.engine.states import TERMINAL, WAITING
from scheduling.kube.door.logs import (
    ContainerRef,
    Log,
    LogOptions,
    LogReader,
    NoContainer,
    NodeFailed,
    NotReady,
    PodLogGone,
    Stopped,
)
from scheduling.kube.seam import KubeError
from scheduling.models import Cluster, Job, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS, PlacementState
from scheduling.queries import selectors
from tenants.errors import Conflict, DomainError, Invalid, NotFound
from tenants.models import User

log = logging.getLogger(__name__)

# Logs open at once in this process; one that is followed holds a thread and a connection.
MOST_OPEN = 64
MOST_OPEN_BY_USER = 16
# The container of pods that Kant makes; others may be added beside it.
MAIN = "main"
STOPS = "This server is stopping. Try again."


class ClusterFailed(DomainError):
    """The cluster did not give the log, through no fault of the caller."""

    code = "cluster-failed"


class TooManyOpen(DomainError):
    """Too many logs are open. `wait`: seconds until a retry makes sense."""

    code = "throttled"
    wait = 10


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A log that can be read, and its pod."""

    log: Log
    pod: Placement


def open_log(
    reader: User, job: Job, pod_set: PodSet, ordinal: int, container: str, options: LogOptions
) -> OpenLog:
    """Open the log of the newest pod of a pod set and ordinal; `container` "" = its first.

    With `previous`, open that of the run before the last restart; for pods that Kant makes, this is
    the newest pod whose program failed before a restart. `job` is one that `reader` may see. Waits
    some seconds for the cluster. Raises Invalid if there is no such container, Conflict if there is
    no log yet, NotFound if it is gone, TooManyOpen, and ClusterFailed.
    """
    pod = _pod(job, pod_set, ordinal, previous=options.previous)
    # Kant's pods are not restarted in place: each run is a pod.
    options = options._replace(previous=options.previous and bool(job.pod_name))
    of = _ref(job, pod, container or _default(job))
    _places.take(reader.pk)
    # Do not hold a pooled connection while a cluster takes its time.
    close_old_connections()
    try:
        with _told(job, pod_set, pod):
            free = partial(_places.free, reader.pk)
            found = _reader.open(job.cluster.access, of, options, ended=free)
    except BaseException:
        _places.free(reader.pk)
        raise
    return OpenLog(found, pod)


def containers_of(job: Job, pod_set: PodSet, ordinal: int, *, previous: bool) -> list[str]:
    """Return the names of the containers of the pod whose log `open_log` would open.

    The default container comes first. Waits for the cluster; raises like `open_log`.
    """
    pod = _pod(job, pod_set, ordinal, previous=previous)
    close_old_connections()
    with _told(job, pod_set, pod):
        names = _reader.containers(job.cluster.access, _ref(job, pod, ""))
    # An admission webhook may have put its own container before Kant's.
    return sorted(names, key=lambda name: name != _default(job))


def stop_reading() -> None:
    """End the logs that are followed, and soon the others, as this process is about to end."""
    _reader.stop()


def pod_set_of(job: Job, name: str | None, ordinal: int) -> PodSet:
    """Return the pod set of that name (None = the first).

    Raises Invalid naming `pod_set` or `ordinal`.
    """
    sets = list(job.pod_sets.all())
    found = sets[0] if name is None else next((s for s in sets if s.name == name), None)
    if found is None:
        names = ", ".join(s.name for s in sets)
        raise Invalid.field("pod_set", f"{job.name} has no pod set “{name}”; it has {names}.")
    if not 0 <= ordinal <= (most := last_ordinal(job, found)):
        raise Invalid.field("ordinal", f"Must be from 0 to {most}: {found.name} has {found.count}.")
    return found


def last_ordinal(job: Job, pod_set: PodSet) -> int:
    """Return the highest ordinal of a pod set, including pods from before a resize."""
    had = job.placements.filter(pod_set=pod_set.index).aggregate(Max("ordinal"))["ordinal__max"]
    return max(pod_set.count - 1, had or 0)


def _default(job: Job) -> str:
    # For a pod that somebody else made with several containers, the API server's error lists them.
    return "" if job.pod_name else MAIN


def _ref(job: Job, pod: Placement, container: str) -> ContainerRef:
    # Jobs that ended before places had namespaces have none there.
    namespace = pod.namespace or job.pod_namespace or job.cluster.namespace
    return ContainerRef(namespace, pod.pod_name, pod.pod_uid, container)


# --- which pod ------------------------------------------------------------------------------------
def _pod(job: Job, pod_set: PodSet, ordinal: int, *, previous: bool) -> Placement:
    if previous and not job.pod_name:
        return _failed_before(job, pod_set, ordinal)
    return _newest(job, pod_set, ordinal)


def _failed_before(job: Job, pod_set: PodSet, ordinal: int) -> Placement:
    """Return the newest pod whose program failed before a restart."""
    mine = selectors.placements_of(job).filter(pod_set=pod_set.index, ordinal=ordinal)
    failed = mine.filter(state=PlacementState.FAILED).exclude(pod_uid="").order_by("-attempt")
    if job.state in TERMINAL:
        # Its last pod was not restarted.
        failed = failed.exclude(attempt=mine.aggregate(last=Max("attempt"))["last"])
    found = failed.first()
    if found is None:
        name = f"{pod_set.name}-{ordinal}"
        raise Conflict(
            f"Pod {name} was not restarted because its program failed, so there is no previous "
            f"log. {_who_failed(job)}".strip()
        )
    return found


def _who_failed(job: Job) -> str:
    """Return a sentence on which pod failed.

    All pods of a gang are restarted, and only the one that failed first has left its log.
    """
    failed = selectors.placements_of(job).filter(state=PlacementState.FAILED).order_by("-attempt")
    if job.state in TERMINAL:
        failed = failed.filter(attempt__lt=job.attempt)
    found = failed.first() if job.restarts else None
    if found is None:
        return ""
    name = job.pod_sets.get(index=found.pod_set).name
    return f"The pod that failed in attempt {found.attempt} was {name}-{found.ordinal}."


def _newest(job: Job, pod_set: PodSet, ordinal: int) -> Placement:
    rows = selectors.placements_of(job).filter(pod_set=pod_set.index, ordinal=ordinal)
    found = rows.order_by("-attempt").first()
    if found is not None and found.pod_uid:
        return found
    name = f"{pod_set.name}-{ordinal}"
    if found is not None:
        _refuse_of_resized(job, pod_set, found)
    if job.state in TERMINAL:
        raise NotFound(f"{job.name} ended before its pod {name} was created, so there is no log.")
    if found is not None and found.state == PlacementState.INTENDED:
        raise Conflict(f"Pod {name} is being created on node {found.node}; there is no log yet.")
    raise Conflict(f"Pod {name} has no place yet, so there is no log. {_why_waits(job)}".strip())


def _why_waits(job: Job) -> str:
    return job.message if job.state in WAITING else ""


# --- why there is no log --------------------------------------------------------------------------
@contextmanager
def _told(job: Job, pod_set: PodSet, pod: Placement) -> Iterator[None]:
    """Turn errors of a cluster into those of the domain."""
    try:
        yield
    except KubeError as error:
        raise _failed(job.cluster, error) from error
    except Stopped:
        raise ClusterFailed(STOPS, code="unavailable") from None
    except NodeFailed as error:
        raise _node_failed(job.cluster, pod, error) from None
    except PodLogGone:
        _refuse_of_resized(job, pod_set, pod)
        raise NotFound(_gone(job, pod)) from None
    except NoContainer as error:
        raise Invalid.field("container", f"Pod {pod.pod_name} has {error}.") from None
    except NotReady as error:
        text = f"Pod {pod.pod_name} gives no log: {error}. {pod.message}".strip()
        raise Conflict(text) from None


def _refuse_of_resized(job: Job, pod_set: PodSet, newest: Placement) -> None:
    """Raise NotFound if the job has become too small for a pod of this ordinal to come back."""
    if job.state in TERMINAL or newest.state in LIVE_PLACEMENTS or newest.ordinal < pod_set.count:
        return
    pods = f"{pod_set.count} pod{'s' * (pod_set.count != 1)}"
    raise NotFound(
        f"Pod {pod_set.name}-{newest.ordinal} has ended and will not be created again: "
        f"{job.name} now asks for {pods}. Its log is gone with it.",
        code="gone",
    )


def _gone(job: Job, pod: Placement) -> str:
    text = (
        f"Pod {pod.pod_name} of attempt {pod.attempt} is gone, and its log with it: Kubernetes "
        "keeps a log no longer than its pod."
    )
    if job.state in WAITING:
        text += f" The job waits to be placed again. {_why_waits(job)}"
    return text


def _node_failed(cluster: Cluster, pod: Placement, error: NodeFailed) -> ClusterFailed:
    log.warning("log of pod %s on cluster %s: %s", pod.pod_name, cluster.name, error)
    return ClusterFailed(
        f"Node {error.node} of cluster “{cluster.name}” does not give the log of pod "
        f"{pod.pod_name} ({error}). Try again when the node responds."
    )


def _failed(cluster: Cluster, error: KubeError) -> ClusterFailed:
    """Return a cluster's error without details.

    The exact words tell how Kant reaches the cluster, which is for operators: they go to the
    process's log.
    """
    log.warning("a log of cluster %s: %s", cluster.name, error)
    if error.code == 403:
        return ClusterFailed(
            f"Kant may not read logs on cluster “{cluster.name}”: its account needs the right "
            "get on pods and pods/log. An operator can grant it by applying "
            "scheduling/kube/rbac.yaml."
        )
    if error.code == 401:
        return ClusterFailed(
            f"Cluster “{cluster.name}” does not accept Kant's credentials. An operator has to "
            "renew them."
        )
    if error.code == 0:
        text = f"The Kubernetes API of cluster “{cluster.name}” does not respond. Try again later."
        return ClusterFailed(text, code="unavailable")
    return ClusterFailed(
        f"The Kubernetes API of cluster “{cluster.name}” answered {error.code}. Try again later; "
        "operators find more in the log of the web process."
    )


# --- limits ---------------------------------------------------------------------------------------
class _Places:
    """Counts the open logs of each user."""

    def __init__(self) -> None:
        # The garbage collector may free a place while its own thread takes one.
        self._lock = threading.RLock()
        self._open: Counter[int] = Counter()

    def take(self, user_id: int) -> None:
        with self._lock:
            if self._open[user_id] >= MOST_OPEN_BY_USER:
                raise TooManyOpen(
                    f"You have {MOST_OPEN_BY_USER} logs open at once, which is the limit. Close "
                    "one first."
                )
            if self._open.total() >= MOST_OPEN:
                raise TooManyOpen(
                    f"{MOST_OPEN} logs are open here at once, which is the limit. Try again in "
                    f"{TooManyOpen.wait} s."
                )
            self._open[user_id] += 1

    def free(self, user_id: int) -> None:
        with self._lock:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]


_places = _Places()
_reader = LogReader()
