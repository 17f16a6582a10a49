"""What the live loop remembers of jobs and pods, and what it wants written and done.

One thread owns all of it: the scheduler's. Nothing here touches the database or the network.
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

# A reason that comes and goes stands among the events of a waiting job at most this often, seconds.
TELL_AGAIN_S = 600.0

# A pod in one of these states holds no device any more.
OVER = frozenset({P.SUCCEEDED, P.FAILED, P.RELEASED})
# Of all jobs that have none: an empty dict of its own is 80 bytes.
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})

# What of the writes of a pass is only about pods that have places, when these were bound, and since
# when jobs stand in the queue.
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
    """A pod whose program failed before a restart, which stays for its log."""

    attempt: int
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodContent:
    """What a pod of a pod set runs; the part of the pod set that the engine does not need."""

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
    """Pods were told at `at` to save their work before `by`. `closed`: how that ended is noted."""

    at: float
    by: float
    closed: bool = False


@dataclass(slots=True)
class Failures:
    """Placements that failed in a row; `attempt`: the last that was counted among them."""

    number: int = 0
    attempt: int = 0

    def count(self, attempt: int) -> None:
        """Count a failed placement, once for all pods of an attempt."""
        if attempt > self.attempt:
            self.attempt = attempt
            self.number += 1


@dataclass(slots=True)
class LivePod:
    """One pod that the job holds now. `row` is its Placement, 0 until written, and `placed_at`
    when that was; `running_at` when it was first seen to run.

    `later`: it came when its job had been admitted already. `in_flight`: a create or bind is with
    the gateway, its end unknown. `awaits`: its node, while it is not sent because a volume claim
    that it mounts is not bound yet. `delete_sent_at`: when its deletion was last asked for. `lost`:
    its node does not answer, nobody will confirm an end.
    `leaving`: this pod alone has to go while its job goes on, for `reason`, as `why` says. `cause`:
    why it goes, alone or with its job, until that was told. `saved_at`: when it last said that its
    work was saved. `tracked`: a Job of Kubernetes counts how it ends. `going`: somebody has asked
    for its deletion.
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
    running_at: float | None = None
    tracked: bool = False
    going: bool = False

    @property
    def key(self) -> PodKey:
        return self.place.pod_set, self.place.ordinal


@dataclass(slots=True)
class LiveJob:
    """A job that waits, holds devices, or still has pods that do.

    `leaving` is set from the moment its places are to be given back until every pod is gone; it
    is what the engine is told then. `attempt` is the highest of its pods; `replaced` are pods
    that left alone, to be placed as another attempt, if at all, while the job goes on. `complete`:
    it misses no pod. `labels` are
    those of its pods beside Kant's own; `protected`: a disruption budget selects some of them.
    `surplus`: failures of pods that a gang can do without, which do not count against the job.
    `restarts`: how often it, or a pod of it, was placed again because its program failed, of
    `max_restarts`; `crashes`: how often in a row by pod, since this scheduler leads; `kept`: the
    pod that failed last, by pod.
    `saved_at`: when one of its pods last said that the work was saved; `notice_s`: how long before
    its pods are deleted it wants to be told, 0 = not at all. `blocked_since`, `stands_at` and
    `front` are what the last scheduler left of them; `front` follows each requeueing, `stands_at`
    what the engine says. `namespace`: where its pods are, all of them, from one placement of the
    whole job to the next; "" = they are nowhere.
    `plain`: the pods that the job stands for, which are bound and never made, {} = Kant makes its
    pods; `pod_gang`: the name of their gang, "" = it is one pod, and `pod_hold`: why that cannot be
    bound now, "" = it can. `told`: what they were told of why they wait since this scheduler leads.
    `waits_for`: why it waits, or misses pods while it runs, as the engine said last, "" = it has
    not since then; `may_grow_by`: how many of these pods quota allows, None = all.
    `said`: that, to be told again; `asked_for`: what became of asking an autoscaler for its nodes,
    and `consumes`: what of that its pods say.
    `asked`: the request as its rows say it; `request`, which the engine is told, says too for which
    nodes the volumes are that its pods mount, and from which pods that run keep it away.
    `volume_hold`: why the volumes cannot be mounted now, None = they can; `node_note`: which nodes
    are left by both, "" = all; `gpus_by_templates`: the pod sets, if Kant makes their pods, whose
    GPUs come by claims that all have a template. `constraints`: what the database knows of the
    difference.
    `noted_at`: when its events last told each reason why it waits, since it waits. `cluster`: the
    primary key of the one on which it is, by its row.
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
    bound: bool = False
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
        """Whether it is not to be placed, by whoever's wish."""
        return self.held or bool(self.pod_hold) or self.volume_hold is not None

    def restored(self) -> JobRestored:
        """What an engine that begins anew is told of a job that holds places."""
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
        """Whether its events tell this reason, which it waits for from now on."""
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
        """It left alone, and is placed as another attempt, if at all."""
        if isinstance(self.replaced, set):
            self.replaced.add(pod.key)
        else:
            self.replaced = {pod.key}
        self.forget(pod)

    def keeps(self, pod: LivePod) -> bool:
        """Whether the pod stays for its log although its place is given back."""
        kept = self.kept.get(pod.key)
        return kept is not None and kept.uid == pod.uid

    def has_all(self) -> bool:
        """Whether as many pods as it asks for have a place and stay, or have done their work."""
        sets = self.request.pod_sets
        return all(len(has) >= s.count for has, s in zip(self._has(), sets, strict=True))

    def beyond_count(self) -> list[LivePod]:
        """Pods that have a place while enough others do, those of the highest ordinals."""
        found: list[LivePod] = []
        for has, s in zip(self._has(), self.request.pod_sets, strict=True):
            live = sorted((p for p in has if p.state not in OVER), key=attrgetter("key"))
            found += live[max(0, len(live) - max(0, len(has) - s.count)) :]
        return found

    def _has(self) -> list[list[LivePod]]:
        """By pod set the pods that stay or are done; what is done beyond the count of now is none
        of its pods."""
        found: dict[int, list[LivePod]] = defaultdict(list)
        for pod in self.pods.values():
            if pod.leaving is None:
                found[pod.place.pod_set].append(pod)
        return [
            [p for p in found[i] if p.state not in OVER or p.place.ordinal < s.count]
            for i, s in enumerate(self.request.pod_sets)
        ]

    def misses(self) -> list[PodKey]:
        """Pods that it runs without and that quota allows."""
        sets = enumerate(self.request.pod_sets)
        keys = ((i, ordinal) for i, s in sets for ordinal in range(s.count))
        return list(islice((key for key in keys if key not in self.pods), self.may_grow_by))

    def is_over(self) -> bool:
        """No pod holds anything any more."""
        return sum(self.tally[state] for state in OVER) == len(self.pods)


@dataclass(frozen=True, slots=True)
class Transition:
    """A guarded step of a job: written only where state and version are still these.

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
    """A placement's next state. `at`: when it came about, in seconds since the epoch, where that is
    known better than by the pass that writes it; 0 = it is not."""

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
    """Why a job waits; `is_new` when the reason itself, not only its numbers, changed, `is_noted`
    when its events tell that."""

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
    """A plain pod, or all pods that wait and name one gang, that a job is to stand for, or whose
    job is to follow it; the oldest first.

    `is_new`: it is one pod by itself, and nothing is known here of a job of it. The write answers,
    by uid: `refused` why there is no job, `over` how the job of the pod ended. `jobs`: those that
    were made.
    """

    pods: tuple[PodFacts, ...]
    is_new: bool = False
    refused: dict[str, Cause] = field(default_factory=dict)
    over: dict[str, Cause] = field(default_factory=dict)
    jobs: list[LiveJob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A waiting job goes to the scheduler of another scope, where its row is still as it was."""

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
    """The nodes that the wide scope asks for; `empty`: they are to be kept free for it."""

    nodes: frozenset[str]
    empty: bool


@dataclass(slots=True)
class Writes:
    """Everything one pass wants in the database, in one transaction."""

    transitions: list[Transition] = field(default_factory=list)
    intents: list[tuple[LiveJob, LivePod]] = field(default_factory=list)
    steps: list[PodStep] = field(default_factory=list)
    bound_jobs: dict[str, float] = field(default_factory=dict)  # and when all they need was bound
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
        """Whether it is only about what `OF_PODS` names."""
        return not any(getattr(self, name) for name in self.__slots__ if name not in OF_PODS)


@dataclass(slots=True)
class Outbox:
    """What a pass has gathered: news for the engine, rows for the database, calls for the door.

    `at`: when that happened which is being taken in, in seconds since the epoch.
    """

    deltas: list[Delta] = field(default_factory=list)
    writes: Writes = field(default_factory=Writes)
    effects: list[Effect] = field(default_factory=list)
    at: float = 0.0
