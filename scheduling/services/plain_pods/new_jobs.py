"""The jobs that plain pods become: which pods may, and the jobs' rows, written together."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

from scheduling.engine.states import HOLDING, TERMINAL, JobEventKind, JobState
from scheduling.engine.verdict import counted
from scheduling.kube.seam import PodFacts
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.translate.plain_pods import GANG
from scheduling.kube.workloads.members import gang_of, is_elastic, members
from scheduling.models import Cluster, Job, JobPod, PodSet
from scheduling.services.common.bulk import Rows, write_together
from scheduling.services.jobs.orders import Order, rows_of
from scheduling.services.plain_pods.books import TOO_MANY_WAITING, Accepted, Books, Premises, Shelf
from scheduling.services.plain_pods.follow import why_held
from scheduling.services.plain_pods.gangs import pod_sets_of
from scheduling.services.plain_pods.spec import PodSets, Refused, hold_of
from scheduling.session.memory.labels import SharedLabels
from scheduling.session.memory.live import LiveJob, Offer, PodKey, PodRef
from scheduling.session.memory.load import ReadSpec, asked_of, live_of
from scheduling.session.pods.plain import GANG_INCOMPLETE, LOST_ONE
from tenants.database.chunks import chunks

Gang = tuple[str, str]  # namespace and name
# Reasons to refuse pods that come from what each transaction reads.
SURE = frozenset({GANG_INCOMPLETE, TOO_MANY_WAITING})


class Jobless(NamedTuple):
    """Pods of an offer that have no job: one, or those of one gang and tenant."""

    offer: Offer
    pods: list[PodFacts]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pods that become one job.

    - `gang`: its name, "" = a single pod.
    - `behind`: the gang that they have to wait for before they may become one, "" = none.
    - `elastic`: other pods of the gang may wait for these.
    """

    pods: Sequence[PodFacts]
    gang: str
    behind: str = ""
    elastic: bool = False

    def refuse_behind(self) -> None:
        if self.behind:
            text = (
                f"The pod is not part of the minimum of gang {self.behind}: it starts after the "
                "gang has its places."
            )
            raise Refused(GANG_INCOMPLETE, text)


class _Candidate(NamedTuple):
    """A unit and what its pods ask for."""

    offer: Offer
    unit: _Unit
    sets: PodSets


def lets_go(job: Job) -> bool:
    """Whether its pods may be taken up again: a gang that lost a pod before it had places."""
    ended = bool(job.pod_gang) and job.state in TERMINAL and job.admitted_at is None
    return ended and job.reason in LOST_ONE


def make_jobs(
    shelf: Shelf, groups: Sequence[Jobless], known: Mapping[str, Job], at: datetime
) -> "NewRows":
    """Make a job of each unit of pods that may become one; note jobs or refusals in the offers.

    Returns the rows of the jobs, to be written. The first job is as of `at`. `known`: the last job
    of each pod that had one.
    """
    if not groups:
        return NewRows()
    trial = _Trial(shelf, groups, known, at)
    if shelf.is_read and any(one.refused.cause.reason not in SURE for one in trial.refusals):
        # What refuses them was read before this transaction and may be outdated.
        shelf.forget()
        trial = _Trial(shelf, groups, known, at)
    shelf.is_read = True
    trial.answer()
    return trial.rows


def make_jobs_ahead(
    shelf: Shelf, offers: Sequence[Offer], at: datetime
) -> "tuple[NewRows, Premises] | None":
    """Make jobs like `make_jobs` of new offers, before the transaction that writes them.

    Returns also what must still hold in it. None = that alone would not do; then nothing is noted.
    """
    trial = _Trial(shelf, [Jobless(o, list(o.pods)) for o in offers], {}, at, ahead=True)
    shelf.is_read = True
    if trial.premises is None or trial.refusals:
        return None
    trial.answer()
    return trial.rows, trial.premises


class _Refusal(NamedTuple):
    offer: Offer
    unit: _Unit
    refused: Refused


class _Trial:
    """What would become of units of pods; nothing of it is written yet."""

    def __init__(
        self,
        shelf: Shelf,
        groups: Sequence[Jobless],
        known: Mapping[str, Job],
        at: datetime,
        *,
        ahead: bool = False,
    ) -> None:
        self.refusals: list[_Refusal] = []
        self._made: list[tuple[Offer, LiveJob]] = []
        self.rows = NewRows(shelf.prepared if ahead else None)
        books, begun = Books(shelf, ahead=ahead), set[Gang]()
        asked = list(_asked(books, groups, known, self.refusals))
        books.hold((first.of_job["tenant"], first.of_job["queue"]) for first in map(_first, asked))
        self.premises = books.premises
        if ahead and self.premises is None:
            return
        for offer, unit, sets in asked:
            gang = unit.pods[0].namespace, unit.gang
            try:
                if unit.elastic and gang in begun:  # by pods of another tenant
                    _Unit(unit.pods, unit.gang, behind=unit.gang).refuse_behind()
                accepted = books.accept(sets)
                books.take_in(accepted.order)
            except Refused as refused:
                self.refusals.append(_Refusal(offer, unit, refused))
            else:
                begun.add(gang)
                job = self.rows.add(accepted, unit, sets, _id_of(unit, known), at)
                self._made.append((offer, job))
                at += timedelta(microseconds=1)

    def answer(self) -> None:
        for offer, unit, refused in self.refusals:
            told = {p.uid: refused.own.get(p.uid, refused.cause) for p in unit.pods}
            offer.refused.update(told)
        for offer, job in self._made:
            offer.jobs.append(job)


def _first(asked: _Candidate) -> Any:
    return asked.sets[0][0]


# --- units ----------------------------------------------------------------------------------------
def _asked(
    books: Books,
    groups: Sequence[Jobless],
    known: Mapping[str, Job],
    refusals: list[_Refusal],
) -> Iterable[_Candidate]:
    """Yield what the pods ask for, if it makes sense; the others are refused."""
    states = _open_gangs(books.cluster, groups)
    for offer, pods in groups:
        for unit in _units(states, pods):
            try:
                unit.refuse_behind()
                also = _beside(offer, unit.pods, known)
                queues = books.names_for(unit.pods)
                sets = pod_sets_of(unit.pods, also, alone=not unit.gang, queues=queues)
            except Refused as refused:
                refusals.append(_Refusal(offer, unit, refused))
            else:
                yield _Candidate(offer, unit, sets)


def _open_gangs(cluster: Cluster, groups: Sequence[Jobless]) -> dict[Gang, set[str]]:
    """Return the states of open jobs, by elastic gang among these."""
    elastic = {gang_of(pods[0]) for _, pods in groups if is_elastic(pods)} - {""}
    found: dict[Gang, set[str]] = defaultdict(set)
    for names in chunks(sorted(elastic)):
        jobs = Job.objects.filter(cluster=cluster, pod_gang__in=names).exclude(state__in=TERMINAL)
        rows = jobs.order_by().values_list("pod_namespace", "pod_gang", "state").distinct()
        for namespace, gang, state in rows:
            found[namespace, gang].add(state)
    return found


def _units(open_gangs: Mapping[Gang, set[str]], pods: Sequence[PodFacts]) -> list[_Unit]:
    """Return the jobs that waiting pods of one gang become.

    All of them become one. Of an elastic gang its minimum becomes one, and once that has places,
    each other pod becomes one.
    """
    gang = gang_of(pods[0])
    if not gang or not is_elastic(pods):
        return [_Unit(pods, gang)]
    states = open_gangs.get((pods[0].namespace, gang), set())
    if states & HOLDING:
        return [_Unit([pod], "") for pod in pods]
    if states:
        return [_Unit(pods, gang, behind=gang)]
    found = members(pods)
    first = _Unit(found.gang, gang, elastic=True)
    return [first, _Unit(found.others, gang, behind=gang)] if found.others else [first]


def _beside(offer: Offer, pods: Sequence[PodFacts], known: Mapping[str, Job]) -> str:
    """Return what to say of other pods that wait and name the same gang."""
    mine = {pod.uid for pod in pods}
    others = [pod for pod in offer.pods if pod.uid not in mine]
    has_job = [pod for pod in others if pod.uid in known and not lets_go(known[pod.uid])]
    mine.update(pod.uid for pod in has_job)
    left = [pod.labels.get(TENANT, "") for pod in others if pod.uid not in mine]
    parts = []
    if has_job:
        count = counted(len(has_job), "pod", "pods")
        parts.append(f"Job {known[has_job[0].uid].pk} has {count} of that name already.")
    if left:
        count, names = counted(len(left), "pod", "pods"), ", ".join(sorted({*left} - {""}))
        parts.append(f"Another gang has that name: {count} of another tenant ({names or 'none'}).")
    return " ".join(parts)


def _id_of(unit: _Unit, known: Mapping[str, Job]) -> uuid.UUID:
    """Return the id of their job; a gang's differs from those of jobs that let its pods go."""
    if not unit.gang:
        return uuid.UUID(unit.pods[0].uid)
    earlier = {str(known[pod.uid].pk) for pod in unit.pods if pod.uid in known}
    parts = sorted(earlier.union(pod.uid for pod in unit.pods))
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{GANG}/{','.join(parts)}")


# --- rows -----------------------------------------------------------------------------------------
class _Prepared(NamedTuple):
    """What the jobs of an order share, as a row and as the database takes it."""

    order: Order  # kept so that its id() stays unique
    job: Job
    job_row: list[Any]
    set_rows: list[list[Any]]
    asked: list[ReadSpec]


class NewRows:
    """The rows of new jobs, not written yet; those of one order are copies of each other.

    `events`: columns of the jobs' events, to be written after them. `prepared`: what was made of
    orders before, by their id().
    """

    def __init__(self, prepared: dict[int, _Prepared] | None = None) -> None:
        self._jobs, self._sets, self._pods = Rows(Job), Rows(PodSet), Rows(JobPod)
        self.tables = self._jobs, self._sets, self._pods
        self.events: list[dict[str, Any]] = []
        self._of_job: dict[str, list[Any]] = {}
        self._of_order: dict[int, _Prepared] = {} if prepared is None else prepared
        self._pod = self._pods.prepare(JobPod())
        self._labels = SharedLabels()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._of_job

    @property
    def ids(self) -> Collection[str]:
        """The ids of the jobs."""
        return self._of_job.keys()

    def write(self) -> None:
        write_together(*self.tables)

    def change(self, job_id: str, **columns: Any) -> None:
        """Change columns of a job that is not written yet."""
        self._jobs.change(self._of_job[job_id], **columns)

    def add(
        self, accepted: Accepted, unit: _Unit, sets: PodSets, job_id: uuid.UUID, at: datetime
    ) -> LiveJob:
        """Add the rows of a job; return the job as it would be read back."""
        prepared = self._prepared(accepted.order, at)
        first = sets[0][0].pod
        assert first.plain is not None
        hold = hold_of(first.plain)
        of_pods = {
            "pod_namespace": first.namespace,
            "pod_name": first.name,
            "pod_gang": unit.gang,
            "pod_hold": hold,
        }
        own = {"id": job_id, "name": accepted.name, "labels": dict(accepted.labels)}
        times = {"submitted_at": at, "reason_at": at}
        columns = {**own, **of_pods, **times, **why_held(hold, at)}
        self._of_job[str(job_id)] = self._jobs.add(prepared.job_row, **columns)
        plain: dict[PodKey, PodRef] = {}
        for index, part in enumerate(sets):
            self._sets.add(prepared.set_rows[index], job_id=job_id)
            for ordinal, one in enumerate(part):
                pod = PodRef(one.pod.name, one.pod.uid, self._labels.one(one.pod.labels))
                key = {"job_id": job_id, "pod_set": index, "ordinal": ordinal}
                self._pods.add(self._pod, **key, **pod._asdict())
                plain[index, ordinal] = pod
        self.events.append(_taken_up(unit, first, job_id, at))
        row = SimpleNamespace(**{**vars(prepared.job), **columns})
        live = live_of(row, accepted.order.tenant.name, prepared.asked)
        live.plain = plain
        return live

    def _prepared(self, order: Order, at: datetime) -> _Prepared:
        if id(order) not in self._of_order:
            job, sets = rows_of(None, order, at)
            set_rows = [self._sets.prepare(row) for row in sets]
            asked = [asked_of(row) for row in sets]
            prepared = _Prepared(order, job, self._jobs.prepare(job), set_rows, asked)
            self._of_order[id(order)] = prepared
        return self._of_order[id(order)]


def _taken_up(unit: _Unit, first: PodFacts, job_id: uuid.UUID, at: datetime) -> dict[str, Any]:
    message = f"Taken up from pod {first.namespace}/{first.name}."
    if unit.gang:
        count = counted(len(unit.pods), "pod", "pods")
        message = f"Taken up from {count} of gang {first.namespace}/{unit.gang}."
    return {
        "job_id": job_id,
        "at": at,
        "kind": JobEventKind.SUBMITTED.value,
        "to_state": JobState.PENDING.value,
        "message": message,
    }
