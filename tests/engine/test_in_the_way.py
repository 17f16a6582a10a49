"""Jobs with dependencies: what Kant says of those that cannot start until somebody acts."""

import random
from dataclasses import replace

import pytest

from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.reasons.after import IN_THE_WAY, ITS_REASON
from scheduling.engine.types import JobRequest, QueueSpec, QuotaSpec, TenantSpec
from scheduling.engine.verdict import Reason
from tests.cases import seeds
from tests.engine.scenario import job, node, play

SCENARIOS = {
    "a job that is on hold, until it is released, and again": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo
        at 0
          + full  a 1x8 H100                    -> starts
          + one   a 1x8 H100
          + two   a 1x1 H100 after=one          -> OnHold jobs=1 after=one
          + three a 1x1 H100 after_ok=full,two  -> OnHold jobs=2
        at 1
          hold one
          two   -> OnHold jobs=1 after=one in_the_way=one its_reason=OnHold
          three -> OnHold jobs=2 after=two in_the_way=one its_reason=OnHold
        at 2
          + late  a 1x1 H100 after=three        -> OnHold after=three in_the_way=one
    """,
    "a job that no node can hold, of an array, behind a job that will start": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + full  a 1x8 H100                         -> starts
          + small a 1x1 H100 array=sweep             -> InsufficientGpus
          + big   a 1x9 H100 array=sweep             -> ExceedsCapacity
          + two   a 1x1 H100 after=full,sweep        -> OnHold after=sweep in_the_way=big
          + three a 1x1 H100 after=two array=more    -> OnHold after=two in_the_way=big
          + four  a 1x1 H100 after_ok=more           -> OnHold after=more in_the_way=big
        at 1
          ends big
          two   -> OnHold after=full jobs=2
          three -> OnHold after=two jobs=1
          four  -> OnHold after=more jobs=1
    """,
    "a job that was doomed, and two that are in the way one after the other": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + fails a 1x1 H100                -> starts
          + dead  a 1x1 H100 after_ok=fails -> OnHold
          + big   a 1x9 H100                -> ExceedsCapacity
          + two   a 1x1 H100 after=big,dead -> OnHold after=big in_the_way=big
        at 1
          fails fails
          dead -> Misconfigured after=fails
          two  -> OnHold in_the_way=big
        at 2
          fails big
          two  -> OnHold after=dead in_the_way=dead its_reason=Misconfigured
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str) -> None:
    play(SCENARIOS[name])


def test_what_is_said_names_the_job_why_and_what_helps():
    known = play(
        """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo
        at 0
          + big   a 1x9 H100
          + two   a 1x1 H100 after=big
          + three a 1x1 H100 after_ok=two
          + other b 1x1 H100 after=big
        at 1
          + full  a 1x8 H100 -> starts
          + held  a 1x1 H100
          hold held
          + four  a 1x1 H100 after=held array=sweep
          + five  a 1x1 H100 after=sweep
        """
    )
    said = {name: record.verdict for name, record in known.state.jobs.items()}
    why = said["big"].summary
    waits = "The job waits until 1 other job has ended."
    assert said["two"].summary == f"{waits} Job big will never run as it is: {why}"
    assert said["two"].remedies == (
        "change job big", "take big out of `after`", "submit the job again without it",
    )  # fmt: skip
    assert said["three"].summary == f"{said['two'].summary} Job two waits for it."
    assert said["three"].remedies[:2] == ("change job big", "take two out of `after_ok`")
    assert said["other"].summary == f"{waits} Job big will never run as it is."
    assert said["five"].summary == f"{waits} Job held is on hold. Array sweep waits for it."
    assert said["five"].remedies[0] == "release job held"


class _Chains:
    """Random dependent jobs, and the truth about them, computed without the engine's own
    records."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = SchedulerState()
        self.held: set[str] = set()
        self.held_queues: set[str] = set()
        self.asked: dict[str, JobRequest] = {}  # jobs that are not over
        self.now, self.number = 0.0, 0
        self.pending: list[d.Delta] = [
            d.NodeChanged(node("n0", 8)),
            d.TenantsChanged((TenantSpec("a"),), (QuotaSpec("a", "H100", 64_000),)),
        ]

    def _wish(self, name: str) -> JobRequest:
        array = f"array{self.number // 4:02}"
        others = [one for _, one in sorted(self.asked.items()) if one.array < array]
        names = [*[one.id for one in others], *sorted({one.array for one in others})]
        links = {
            field: tuple(self.random.sample(names, k=min(len(names), 2)))
            for field in ("after", "after_ok")
            if names and self.random.random() < 0.6
        }
        gpus = self.random.choice((1, 1, 4, 9))
        asked = job(name, "a", f"1x{gpus} H100", at=self.now)
        queue = self.random.choice(("default", "night"))
        return replace(asked, queue=queue, array=array, **links)

    def step(self) -> None:
        self.now += self.random.choice((0.5, 1.0, 90.0))
        for _ in range(self.random.randint(1, 3)):
            self._act()
        deltas, self.pending = self.pending, []
        run_cycle(self.state, deltas, self.now)

    def _act(self) -> None:
        act, names = self.random.random(), sorted(self.asked)
        name = self.random.choice(names) if names else ""
        if act < 0.4 or not names:
            name, self.number = f"j{self.number:02}", self.number + 1
            self.asked[name] = self._wish(name)
            if self.random.random() < 0.2:
                self.held.add(name)
            self.pending.append(d.JobSubmitted(self.asked[name], held=name in self.held))
        elif act < 0.55:
            self.held ^= {name}
            self.pending.append(d.JobSubmitted(self.asked[name], held=name in self.held))
        elif act < 0.65 and name in self.state.jobs and not self.state.jobs[name].pods:
            gpus = self.random.choice((1, 9))
            sets = job(name, "a", f"1x{gpus} H100").pod_sets
            self.asked[name] = replace(self.asked[name], pod_sets=sets)
            self.pending.append(d.JobChanged(self.asked[name]))
        elif act < 0.75:
            self.held_queues ^= {"night"}
            queue = QueueSpec("a", "night", held="night" in self.held_queues)
            self.pending.append(d.QueuesChanged((queue,)))
        elif act < 0.9:
            del self.asked[name]
            self.held.discard(name)
            self.pending.append(d.JobEnded(name, succeeded=self.random.random() < 0.5))

    # --- what is true ---------------------------------------------------------------------------
    def before(self, name: str) -> set[str]:
        asked = self.asked[name]
        named = {*asked.after, *asked.after_ok}
        return {n for n, other in self.asked.items() if {n, other.array} & named}

    def roots(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return the jobs that keep this one from starting and need somebody to act."""
        record = self.state.jobs[name]
        if record.started_at is not None:
            return set()
        why = record.verdict
        assert why is not None
        if name in self.held or why.will_never_run:
            return {name}
        before = self.before(name)
        if before:
            return {root for other in before for root in self.roots(other)}
        return {name} if self.asked[name].queue in self.held_queues else set()

    def check(self) -> None:
        for name, record in self.state.jobs.items():
            why = record.verdict
            if record.started_at is not None or name in self.held or not self.before(name):
                continue
            if why.reason is Reason.MISCONFIGURED:
                continue
            about = f"{name} at {self.now}: {why}"
            roots = self.roots(name)
            found = why.evidence.get(IN_THE_WAY)
            assert (found is not None) == bool(roots), f"{about}, {roots}"
            if found is None:
                assert why.remedies == ("wait for them",), about
                continue
            assert found in roots, f"{about}, {roots}"
            root = self.state.jobs[found]
            assert why.evidence[ITS_REASON] == root.verdict.reason, about
            assert f"Job {found} " in why.summary, about
            assert found in why.remedies[0], about
            if root.verdict.reason is not Reason.ON_HOLD:
                assert root.verdict.summary in why.summary, about


@pytest.mark.parametrize("seed", seeds(600))
def test_whoever_waits_for_what_does_not_start_is_told_so_at_once(seed: int) -> None:
    chains = _Chains(seed)
    for _ in range(30):
        chains.step()
        chains.check()
