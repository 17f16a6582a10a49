"""What the live loop remembers of jobs and pods, and what it wants written and done.

The scheduler's thread alone owns all of it. Nothing here touches the database or the network.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from scheduling.engine.decisions import Blocked, Reservation, Waiting
from scheduling.engine.deltas import (
    Delta,
    JobEnded,
    JobRequeued,
    JobRestored,
    PodEnded,
    PodRequeued,
)
from scheduling.engine.states import JobEventKind, JobState
from scheduling.engine.types import JobRequest, Node, PodPlacement
from scheduling.engine.verdict import Verdict
from scheduling.kube.seam import Effect, NodeFacts, PodFacts
from scheduling.kube.translate.manifests import PodSettings
from scheduling.models.jobs import PlacementState as P
from scheduling.session.memory.constraints import Document
from scheduling.session.memory.storage import ClaimHold

PodKey = tuple[int, int]  # (pod set, ordinal)
EffectKey = tuple[str, int, int, int]  # (job id, attempt, pod set, ordinal)
PodLeaves = PodEnded | PodRequeued  # what the engine is told of a pod that leaves alone

# The events of a waiting job repeat a reason that comes and goes at most this often, in seconds.
TELL_AGAIN_S = 600.0

# A pod in one of these states holds no device any more.
OVER = frozenset({P.SUCCEEDED, P.FAILED, P.RELEASED})
# Shared by all jobs without an entry: an empty dict of their own takes 80 bytes each.
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

# The fields of a pass's writes that concern only pods with places: their steps and when they were
# bound; also since when jobs stand in the queue.
OF_PODS = frozenset({"steps", "held", "bound_jobs", "failures", "restarts", "stand_at"})


def _nothing() -> Mapping[Any, Any]:
    return NOTHING


class Cause(NamedTuple):
    """Why pods go: a reason in CamelCase and a sentence."""

    reason: str
    text: str


class PodRef(NamedTuple):
    """A pod that somebody else made, in the namespace of its job, with its labels."""

    name: str
    uid: str
    labels: Mapping[str, str]


class KeptPod(NamedTuple):
    """A pod whose program failed before a restart; it is kept for its log."""

    attempt: int
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodContent:
    """What a pod of a pod set runs: the part of the pod set that the engine does not need."""

    image: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    annotations: Mapping[str, str]
    settings: PodSettings = field(default_factory=PodSettings)

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of the volume claims that the pod mounts."""
        claims = (volume.get("persistent_volume_claim") for volume in self.settings.volumes)
        return tuple(dict.fromkeys(filter(None, claims)))


@dataclass(slots=True, eq=False)
class Notice:
    """At `at`, pods were warned to save their work before `by`. `closed`: the outcome is noted."""

    at: float
    by: float
    closed: bool = False


@dataclass(slots=True)
class Failures:
    """The number of placements that failed in a row; `attempt` is the last one counted."""

    number: int = 0
    attempt: int = 0

    def count(self, attempt: int) -> None:
        """Count a failed placement, once for all pods of an attempt."""
        if attempt > self.attempt:
            self.attempt = attempt
            self.number += 1


@dataclass(slots=True)
class LivePod:
    """One pod that the job holds now. Times are seconds since the epoch.

    - `row`: the key of its Placement, 0 until written; `placed_at`: when that was written.
    - `bound_at`: when it was bound, 0 = it is not, or nobody knows.
    - `running_at`: when it was first seen running.
    - `later`: it was placed after its job had been admitted.
    - `in_flight`: the gateway has a create or bind whose result is unknown.
    - `awaits`: its node, while a volume claim that it mounts is not bound and so it is not sent.
    - `delete_sent_at`: when its deletion was last requested.
    - `lost`: its node does not answer, so nobody will confirm its end.
    - `leaving`: this pod alone has to go while its job continues, for `reason`, as `why` explains.
    - `cause`: why it goes, alone or with its job, until that has been reported.
    - `saved_at`: when it last reported that its work was saved.
    - `tracked`: a Kubernetes Job counts how it ends.
    - `going`: somebody has requested its deletion.
    """

    place: PodPlacement
    attempt: int
    name: str
    gpu_model: str
    state: P = P.INTENDED
    row: int = 0
    placed_at: float = 0.0
    later: bool = False
    uid: str = ""
    in_flight: bool = False
    awaits: Node | None = None
    delete_sent_at: float | None = None
    lost: bool = False
    leaving: PodLeaves | None = None
    reason: str = ""
    why: str = ""
    cause: Cause | None = None
    notice: Notice | None = None
    saved_at: float = 0.0
    bound_at: float = 0.0
    running_at: float | None = None
    tracked: bool = False
    going: bool = False

    @property
    def key(self) -> PodKey:
        return self.place.pod_set, self.place.ordinal


@dataclass(slots=True)
class LiveJob:
    """A job that waits, holds devices, or still has pods that do.

    State:
    - `leaving`: what to tell the engine once every pod is gone; set from the moment that the job's
      places are to be given back.
    - `attempt`: the highest of its pods.
    - `replaced`: pods that left alone while the job continues; if placed again, it is with another
      attempt.
    - `bound_at`: when the last pod that it needs was bound, 0 = nobody knows; None = one is not.
    - `complete`: no pod is missing.
    - `labels`: the labels of its pods besides Kant's own; `protected`: a disruption budget selects
      some of its pods.
    - `cluster`: the primary key of its cluster, by its row.
    - `namespace`: where all of its pods are, from one placement of the whole job to the next; "" =
      nowhere.
    - `blocked_since`, `stands_at`, `front`: as the last scheduler left them; `front` changes with
      each requeueing, `stands_at` as the engine says.

    Failures and notices:
    - `surplus`: failures of pods that a gang can do without; they do not count against the job.
    - `restarts`: how often the job or a pod of it was placed again after its program failed, out of
      `max_restarts`.
    - `crashes`: by pod, failures in a row since this scheduler took over; `kept`: by pod, the pod
      that failed last.
    - `saved_at`: when one of its pods last reported that the work was saved.
    - `notice_s`: how many seconds before deletion its pods are to be warned, 0 = not at all.

    Plain pods:
    - `plain`: the pods that the job stands for, which are bound and never made; {} = Kant makes
      them.
    - `pod_gang`: the name of their gang, "" = a single pod.
    - `pod_hold`: why the pods cannot be bound now, "" = they can.
    - `told`: the reason for waiting that the pods were last given since this scheduler took over.

    Waiting:
    - `waits_for`: why it waits, or misses pods while it runs, as the engine last said; "" = the
      engine has not said.
    - `may_grow_by`: how many of the missing pods quota allows, None = all.
    - `said`: the last such news, to be repeated.
    - `asked_for`: what became of asking an autoscaler for nodes, as a sentence; `consumes`: the
      annotations by which the pods name that request.
    - `noted_at`: by reason, when its events last told it, since the job waits.

    Volumes and node rules:
    - `asked`: the request by the job's rows. `request`, which the engine gets, adds the nodes of
      the volumes that the pods mount, and the running pods that keep it away.
    - `volume_hold`: why the volumes cannot be mounted now, None = they can.
    - `node_note`: the nodes that remain, "" = all.
    - `gpus_by_templates`: pod sets of pods made by Kant whose GPUs come by claims that all have a
      template.
    - `constraints`: what the database has of the difference between `asked` and `request`.
    """

    request: JobRequest
    name: str
    contents: tuple[PodContent, ...]
    state: JobState
    version: int
    attempt: int
    failures: Failures = field(default_factory=Failures)
    surplus: Failures = field(default_factory=Failures)
    restarts: int = 0
    max_restarts: int = 0
    crashes: Mapping[PodKey, int] = field(default_factory=_nothing)
    kept: Mapping[PodKey, KeptPod] = field(default_factory=_nothing)
    cluster: int = 0
    scope: str = ""
    not_before: float = 0.0
    held: bool = False
    admitted_at: float = 0.0
    reason: str = ""
    pods: dict[PodKey, LivePod] = field(default_factory=dict)
    tally: Counter[P] = field(default_factory=Counter)
    replaced: Set[PodKey] = frozenset()
    saved_at: float = 0.0
    notice_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=_nothing)
    protected: bool = False
    blocked_since: float | None = None
    stands_at: float | None = None
    front: bool = False
    leaving: JobEnded | JobRequeued | None = None
    bound_at: float | None = None
    complete: bool = True
    namespace: str = ""
    plain: Mapping[PodKey, PodRef] = field(default_factory=_nothing)
    pod_gang: str = ""
    pod_hold: str = ""
    told: str = ""
    waits_for: str = ""
    may_grow_by: int | None = None
    said: Waiting | None = None
    asked_for: str = ""
    consumes: Mapping[str, str] = field(default_factory=_nothing)
    noted_at: Mapping[str, float] = field(default_factory=_nothing)
    asked: JobRequest = field(init=False)
    volume_hold: ClaimHold | None = None
    node_note: str = ""
    gpus_by_templates: frozenset[int] = frozenset()
    constraints: Document | None = None

    def __post_init__(self) -> None:
        self.asked = self.request

    @property
    def is_held(self) -> bool:
        """Whether somebody or something keeps it from being placed."""
        return self.held or bool(self.pod_hold) or self.volume_hold is not None

    def restored(self) -> JobRestored:
        """Return what a new engine is told of a job that holds places."""
        here = [pod for pod in self.pods.values() if pod.state not in OVER]
        return JobRestored(
            self.request,
            tuple(pod.place for pod in here),
            self.admitted_at,
            tuple(pod.key for pod in self.pods.values() if pod.state in OVER),
            tuple(pod.placed_at or self.admitted_at for pod in here),
            tuple(pod.key for pod in here if isinstance(pod.leaving, PodEnded)),
            tuple(pod.running_at for pod in here),
        )

    @property
    def id(self) -> str:
        return self.request.id

    def notes(self, reason: str, now: float) -> bool:
        """Whether the job's events are to tell this reason, for which it now waits."""
        last = self.noted_at.get(reason)
        if last is not None and last <= now < last + TELL_AGAIN_S:
            return False
        self.noted_at = {**self.noted_at, reason: now}
        return True

    def add(self, pod: LivePod) -> None:
        self.pods[pod.key] = pod
        self.tally[pod.state] += 1

    def forget(self, pod: LivePod) -> None:
        del self.pods[pod.key]
        self.tally[pod.state] -= 1

    def effect_key(self, pod: LivePod) -> EffectKey:
        return (self.id, pod.attempt, *pod.key)

    def replace_later(self, pod: LivePod) -> None:
        """Note that the pod left alone; if it is placed again, it is with another attempt."""
        if isinstance(self.replaced, set):
            self.replaced.add(pod.key)
        else:
            self.replaced = {pod.key}
        self.forget(pod)

    def keeps(self, pod: LivePod) -> bool:
        """Whether the pod is kept for its log although its place is given back."""
        kept = self.kept.get(pod.key)
        return kept is not None and kept.uid == pod.uid

    def has_all(self) -> bool:
        """Whether enough pods have a place and stay, or are done."""
        sets = self.request.pod_sets
        return all(len(has) >= s.count for has, s in zip(self._has(), sets, strict=True))

    def beyond_count(self) -> list[LivePod]:
        """Return the pods with a place beyond the count: those with the highest ordinals."""
        found: list[LivePod] = []
        for has, s in zip(self._has(), self.request.pod_sets, strict=True):
            live = sorted((p for p in has if p.state not in OVER), key=attrgetter("key"))
            found += live[max(0, len(live) - max(0, len(has) - s.count)) :]
        return found

    def _has(self) -> list[list[LivePod]]:
        """Return, by pod set, the pods that stay or are done.

        Pods that are done and beyond the count of now do not belong to the job.
        """
        found: dict[int, list[LivePod]] = defaultdict(list)
        for pod in self.pods.values():
            if pod.leaving is None:
                found[pod.place.pod_set].append(pod)
        return [
            [p for p in found[i] if p.state not in OVER or p.place.ordinal < s.count]
            for i, s in enumerate(self.request.pod_sets)
        ]

    def misses(self) -> list[PodKey]:
        """Return the missing pods that quota allows."""
        sets = enumerate(self.request.pod_sets)
        keys = ((i, ordinal) for i, s in sets for ordinal in range(s.count))
        return list(islice((key for key in keys if key not in self.pods), self.may_grow_by))

    def is_over(self) -> bool:
        """Whether no pod holds anything any more."""
        return sum(self.tally[state] for state in OVER) == len(self.pods)


@dataclass(frozen=True, slots=True)
class Transition:
    """A guarded step of a job: written only if state and version are still these.

    `columns` are the job's other columns that change with it, `evidence` the numbers behind it.
    """

    job_id: str
    kind: JobEventKind
    from_state: JobState
    to_state: JobState
    version: int
    reason: str = ""
    message: str = ""
    columns: tuple[tuple[str, Any], ...] = ()
    evidence: tuple[tuple[str, int | float | str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodStep:
    """A placement's next state.

    `at`: when it happened, in seconds since the epoch; 0 = when the pass writes it.
    """

    pod: LivePod
    from_state: P
    to_state: P
    message: str = ""
    at: float = 0.0


class HeldFrom(NamedTuple):
    """From when a pod counts as allocated, in seconds since the epoch."""

    pod: LivePod
    at: float


@dataclass(frozen=True, slots=True)
class ReasonChange:
    """Why a job waits.

    `is_new`: the reason itself changed, not only its numbers. `is_noted`: the job's events tell it.
    """

    job_id: str
    state: JobState
    verdict: Verdict
    is_new: bool
    is_noted: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Something people should find among a job's events; it changes nothing."""

    job_id: str
    state: JobState
    reason: str
    message: str
    evidence: tuple[tuple[str, int | float | str], ...] = ()


@dataclass(slots=True)
class Offer:
    """Waiting plain pods that a job is to be made for, or whose job is to follow them.

    Either one pod, or all waiting pods that name one gang. The oldest pod comes first. `is_new`: it
    is a single pod without a known job. The write answers by uid: `refused` says why there is no
    job, `over` how the pod's job ended. `jobs`: the jobs that were made.
    """

    pods: tuple[PodFacts, ...]
    is_new: bool = False
    refused: dict[str, Cause] = field(default_factory=dict)
    over: dict[str, Cause] = field(default_factory=dict)
    jobs: list[LiveJob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A waiting job goes to the scheduler of another scope, if its row has not changed."""

    job_id: str
    state: JobState
    version: int
    from_scope: str
    to_scope: str
    message: str


@dataclass(frozen=True, slots=True)
class Handover:
    """Nodes without a pod of Kant that the scope gives to another one."""

    nodes: frozenset[str]
    to_scope: str


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """The nodes that the wide scope asks for; `empty`: keep them free for it."""

    nodes: frozenset[str]
    empty: bool


@dataclass(slots=True)
class Writes:
    """Everything that one pass wants in the database, in one transaction."""

    transitions: list[Transition] = field(default_factory=list)
    intents: list[tuple[LiveJob, LivePod]] = field(default_factory=list)
    steps: list[PodStep] = field(default_factory=list)
    bound_jobs: dict[str, float] = field(default_factory=dict)  # when all needed pods were bound
    held: list[HeldFrom] = field(default_factory=list)
    reasons: list[ReasonChange] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    staying: list[Waiting] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    stand_at: dict[str, float] = field(default_factory=dict)  # since when jobs stand in the queue
    stand_as_submitted: list[str] = field(default_factory=list)
    constraints: dict[str, Document | None] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    claims: list[NodeFacts] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    routes: list[RouteStep] = field(default_factory=list)
    wanted: WantedNodes | None = None
    offers: list[Offer] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)  # nodes whose orders have ended

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__slots__)

    @property
    def is_of_pods(self) -> bool:
        """Whether it concerns only the fields in `OF_PODS`."""
        return not any(getattr(self, name) for name in self.__slots__ if name not in OF_PODS)


@dataclass(slots=True)
class Outbox:
    """What a pass has gathered: news for the engine, rows for the database, calls for the gateway.

    `at`: when what is being taken in happened, in seconds since the epoch.
    """

    deltas: list[Delta] = field(default_factory=list)
    writes: Writes = field(default_factory=Writes)
    effects: list[Effect] = field(default_factory=list)
    at: float = 0.0
