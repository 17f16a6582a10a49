"""Whatever people, machines and schedulers do, and in whatever order: in the end all books
agree."""

import random
import time
import urllib.error
from collections import Counter

import pytest
from django.db.models import F

from metrics.benches import stage
from scheduling.engine.states import HOLDING, TERMINAL, WAITING
from scheduling.kube.door import settle
from scheduling.kube.door.gateway import Gateway
from scheduling.kube.seam import Bind, CallOutcome, CreateAndBind, Result
from scheduling.models import Job, JobEvent, NodeRecord, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.services.jobs.changes import change_job, hold_job, release_job
from scheduling.services.scheduler import cycle
from scheduling.session import changes
from scheduling.session.pods import leave
from scheduling.session.pods import plain as plain_pods
from tenants.errors import Conflict, Invalid
from tests.cases import seeds
from tests.live.conftest import NODES
from tests.live.plain_pods import NAMESPACE, condition, make, path, ungate

pytestmark = pytest.mark.live
STEPS = 50
GANGS = ("a", "b", "c")
DENIED = CallOutcome(Result.REFUSED, code=403, message="denied")


@pytest.fixture
def inventory(tmp_path):
    """Return a fleet of two leaves, each with half the nodes."""
    return stage.inventory(tmp_path / "fleet.yaml", NODES, per_leaf=NODES // 2)


class History:
    """Random acts. `refused`: this many bindings are denied. `dies`: the scheduler dies after
    its next write, with half of its requests sent. `between`: a person changes the next job that
    gets places while these are being written."""

    def __init__(self, world, seed, monkeypatch):
        self.world, self.random = world, random.Random(seed)
        self.log, self.made, self.scopes = [], 0, 1
        self.refused, self.dies, self.between = 0, False, False
        self.rows = world.describe
        submit, apply = Gateway.submit, cycle.apply_decisions

        def at_the_door(gateway, effects):
            if self.dies and effects:
                self.dies = False
                submit(gateway, effects[: len(effects) // 2])
                raise RuntimeError("the scheduler dies")
            denied = [e for e in effects if isinstance(e, Bind | CreateAndBind)][: self.refused]
            self.refused -= len(denied)
            for effect in denied:
                gateway._effect_done(effect, DENIED)
            submit(gateway, [effect for effect in effects if effect not in denied])

        def beside_a_person(lease, writes, now, *others):
            if writes.intents and self.between:
                self.between = False
                self.change(writes.intents[0][0].id)
            return apply(lease, writes, now, *others)

        monkeypatch.setattr(Gateway, "submit", at_the_door)
        monkeypatch.setattr(cycle, "apply_decisions", beside_a_person)

    # --- people -----------------------------------------------------------------------------------
    def pod(self, gang=None, size=1):
        self.made += 1
        labels = {"kant.io/tenant": "team"} | ({"kant.io/gang": gang} if gang else {})
        notes = {"sim.kant.io/run-seconds": self.random.choice(["600", "600", "0.3"])}
        notes |= {"kant.io/gang-size": str(size)} if gang else {}
        notes |= {"sim.kant.io/exit-code": "1"} if self.random.random() < 0.1 else {}
        gates = {"schedulingGates": [{"name": "example.com/later"}]}
        gated = gates if self.random.random() < 0.1 else {}
        gpus = self.random.choice([8, 8, 4])
        make(self.world, f"p{self.made}", gpus=gpus, labels=labels, notes=notes, **gated)

    def gang(self):
        """Usually a gang of all pods."""
        gang, size = self.random.choice(GANGS), self.random.randint(1, 4)
        for _ in range(size if self.random.random() < 0.8 else self.random.randint(1, size + 1)):
            self.pod(gang, size)

    def job(self):
        r = self.random
        self.made += 1
        fields = {"pods": r.randint(1, 4), "gpus": r.choice([8, 4]), "gang": r.random() < 0.6}
        fields |= {"run_s": r.choice([600.0, 0.3]), "exit_code": r.choice([0, 0, 1])}
        fields |= {"max_restarts": r.choice([0, 2]), "priority": r.choice([0, 0, 5])}
        if fields["gang"] and fields["pods"] > 1 and r.random() < 0.5:
            fields["min_count"] = 1
        self.world.submit(f"j{self.made}", **fields)

    def delete(self):
        pods = self.plain()
        if pods:
            self.world.call("DELETE", path(self.random.choice(pods)["metadata"]["name"]))

    def ungate(self):
        for pod in self.plain():
            if pod["spec"].get("schedulingGates"):
                ungate(self.world, pod["metadata"]["name"])

    def bind_elsewhere(self):
        free = [pod for pod in self.plain() if not pod["spec"].get("nodeName")]
        if free:
            name = self.random.choice(free)["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": self.random.choice(self.nodes())}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            self.world.call("POST", f"{path(name)}/binding", {**body, "target": target})

    def change(self, *ids):
        jobs = Job.objects.filter(state__in=list(WAITING | HOLDING)).order_by("submitted_at", "pk")
        jobs = jobs.filter(pk__in=ids) if ids else jobs
        acts = [
            lambda job: self.world.cancel(job),
            lambda job: hold_job(self.world.user, job),
            lambda job: release_job(self.world.user, job),
            lambda job: change_job(self.world.user, job, {"priority": self.random.randint(0, 9)}),
            *[lambda job: self.world.resize(job, self.random.randint(1, 5))] * 2,
        ]
        if jobs:
            try:
                self.random.choice(acts)(self.random.choice(jobs))
            except (Conflict, Invalid) as refused:
                self.log.append(str(refused.detail))

    def change_meanwhile(self):
        self.between = True

    # --- machines and schedulers ------------------------------------------------------------------
    def node(self):
        name, act = self.random.choice(self.nodes()), self.random.choice(["node-down", "node-up"])
        self.world.fault(act, node=name)

    def requests(self):
        fields = {"verb": self.random.choice(["bind", "create", "delete"]), "resource": "pods"}
        count = self.random.randint(1, 4)
        if self.random.random() < 0.5:
            self.world.fault("lose-reply", **fields, count=count)
        else:
            self.world.fault("too-many-requests", **fields, count=count, retry_after_s=0)

    def watches(self):
        self.world.fault(self.random.choice(["drop-watches", "expire-watches"]))

    def deny(self):
        self.refused += self.random.randint(1, 3)

    def die(self):
        self.dies = True

    def restart(self):
        self.world.restart_scheduler()

    ACTS = (
        (4, pod), (10, gang), (6, job), (8, delete), (4, ungate), (2, bind_elsewhere), (10, change),
        (6, change_meanwhile), (3, node), (4, requests), (3, watches), (3, deny), (4, die),
        (4, restart),
    )  # fmt: skip

    def run(self):
        weights = [weight for weight, _ in self.ACTS]
        for _ in range(STEPS):
            [(_, act)] = self.random.choices(self.ACTS, weights)
            self.log.append(act.__name__)
            try:
                act(self)
            except (urllib.error.HTTPError, ConnectionError) as error:
                # A fault that was meant for Kant, or a pod that may not be bound now.
                self.log.append(f"{error}")
            until = time.monotonic() + self.random.choice([0.0, 0.0, 0.1, 0.5])
            self.world.drive(lambda until=until: time.monotonic() >= until)

    def heal(self):
        self.refused, self.dies, self.between = 0, False, False
        self.world.call("DELETE", "/sim/faults")

    # --- what there is ----------------------------------------------------------------------------
    def divide(self):
        labels = self.world.call("GET", f"/api/v1/nodes/{self.nodes()[0]}")["metadata"]["labels"]
        levels = (f"network.topology.nvidia.com/{name}" for name in ("core", "spine", "leaf"))
        leaf = "/".join(labels[level] for level in levels)
        self.world.set_policy(shards=[{"name": "north", "groups": [leaf]}, {"name": "south"}])
        self.scopes = 3

    def plain(self):
        items = self.world.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return sorted(items, key=lambda pod: pod["metadata"]["name"])

    def nodes(self):
        return sorted(
            n["metadata"]["name"] for n in self.world.call("GET", "/api/v1/nodes")["items"]
        )

    def wrong(self):
        """Return what does not agree: rows, pods, the sessions' memory, the engines' books."""
        sessions = [led.session for led in self.world.scheduler.led.values()]
        if len(sessions) != self.scopes or not all(s.connected for s in sessions):
            return ["nobody leads"]
        pods = {pod["metadata"]["uid"]: pod for pod in self.world.pods().values()}
        here = {
            u: p for u, p in pods.items() if p["status"]["phase"] not in ("Succeeded", "Failed")
        }
        jobs = {str(job.pk): job for job in Job.objects.exclude(state__in=list(TERMINAL))}
        rows = Placement.objects.filter(state__in=LIVE_PLACEMENTS)
        held = {row.pod_uid: row for row in rows}
        found = [
            f"{row.pod_name} holds a place"
            for uid, row in held.items()
            if uid not in here
            or here[uid]["status"]["phase"] != "Running"
            or here[uid]["spec"]["nodeName"] != row.node
            or str(row.job_id) not in jobs
            or jobs[str(row.job_id)].state not in HOLDING
        ]
        others = 0
        for uid, pod in here.items():
            meta, node = pod["metadata"], pod["spec"].get("nodeName")
            if node and uid not in held:
                limits = pod["spec"]["containers"][0]["resources"]["limits"]
                others += 1000 * int(limits["nvidia.com/gpu"])
                if "kant.io/devices" in meta.get("annotations", {}):
                    found.append(f"{meta['name']} runs without a place")
            if not node and not pod["spec"].get("schedulingGates"):
                found += self._told_wrong(uid, meta["name"], jobs)
        known = sorted(job_id for s in sessions for job_id in s.life.jobs)
        decided = sorted(job_id for s in sessions for job_id in s.state.jobs)
        if not sorted(jobs) == known == decided:
            found.append(f"open {sorted(jobs)}, known {known}, {decided}")
        if any(
            s.life.leave.jobs or s.life.plain._unanswered or s.life.plain._refused for s in sessions
        ):
            found.append("something is under way")
        milli = sum(row.held_milli for row in held.values())
        used = {s.state.book.account("team", stage.MODEL).used for s in sessions}
        if used != {milli}:
            found.append(f"quota used {used}, not {milli}")
        if self.free() != NODES * 8000 - milli - others:
            found.append(f"{self.free()} free beside {milli} and {others}")
        found += self._rows_wrong(here.values(), held)
        for session in sessions:
            found += self._sized_wrong(session, jobs, held.values())
        found += filter(None, map(self._told_twice, Job.objects.all()))
        services = self.world.call("GET", "/api/v1/namespaces/kant-jobs/services")["items"]
        named = {service["metadata"]["labels"]["kant.io/job"] for service in services}
        return [*found, *(f"service of job {job}" for job in sorted(named - jobs.keys()))]

    def _rows_wrong(self, here, held):
        """The rows of nodes must say what the pods on them hold."""
        milli = Counter()
        for pod in here:
            row, node = held.get(pod["metadata"]["uid"]), pod["spec"].get("nodeName")
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            milli[node] += row.held_milli if row else 1000 * int(limits["nvidia.com/gpu"])
        for name, told in NodeRecord.objects.values_list("name", "allocated_milli"):
            if told != milli[name]:
                yield f"the row of {name} says {told}, not {milli[name]}"

    def _told_wrong(self, uid, name, jobs):
        """A waiting pod must say why its job waits, or why it has no job."""
        job = next((j for j in jobs.values() if j.pods.filter(uid=uid).exists()), None)
        _, reason, text = condition(self.world, name) or ("", "", "")
        if job is None:
            return [] if reason.startswith("Gang") else [f"{name} has no job: {reason}"]
        told = job.state in WAITING and text.startswith(f"{job.reason}: ")
        return [] if told else [f"{name}: {text}, and its job {job.state} {job.reason}"]

    def _sized_wrong(self, session, jobs, held):
        """All must agree on how many pods a job requests, and it has no more."""
        here = Counter(str(row.job_id) for row in held)
        for job_id, live in session.life.jobs.items():
            job, record = jobs.get(job_id), session.state.jobs.get(job_id)
            if job is None or record is None:
                continue
            asked = sum(s.count for s in job.pod_sets.all())
            if not here[job_id] <= asked == live.request.pods == record.job.pods:
                yield f"{job.name} has {here[job_id]} pods of {asked}, {live.request}, {record.job}"

    def _told_twice(self, job):
        """Each event must begin where the one before it ended, and the last one must end at the
        job's state."""
        at = ""
        for event in (
            JobEvent.objects.filter(job=job).exclude(from_state=F("to_state")).order_by("pk")
        ):
            if at and event.from_state != at:
                return f"{job.name}: {event.kind} from {event.from_state} at {at}"
            at = event.to_state
        return "" if at == job.state else f"{job.name}: is {job.state}, events end at {at}"

    def free(self):
        sessions = [led.session for led in self.world.scheduler.led.values()]
        return sum(s.state.cluster.free_milli(stage.MODEL) for s in sessions)

    def describe(self):
        return "\n".join([*self.log, *self.wrong(), *map(str, self.rows())])


@pytest.mark.parametrize("divided", [False, True], ids=["whole", "divided"])
@pytest.mark.parametrize("seed", seeds(3))
def test_all_books_agree_when_nothing_happens_any_more(world, monkeypatch, seed, divided):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    monkeypatch.setattr(plain_pods, "BIND_AGAIN_S", 0.2)
    monkeypatch.setattr(leave, "ASK_AGAIN_S", 2.0)
    monkeypatch.setattr(settle, "BUDGET_S", 0.5)
    monkeypatch.setattr(cycle, "RETRY_S", 0.1)
    world.set_policy(preemption=["priority"], min_runtime_s=0, gang_timeout_s=20.0)
    history = History(world, seed, monkeypatch)
    if divided:
        history.divide()
    history.run()
    history.heal()
    monkeypatch.setattr(world, "describe", history.describe)
    world.drive(lambda: not history.wrong())
    for pod in history.plain():
        world.call("DELETE", path(pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    for job in Job.objects.filter(pod_name="").exclude(state__in=list(TERMINAL)):
        world.cancel(job)
    world.drive(lambda: not Job.objects.exclude(state__in=list(TERMINAL)) and not history.wrong())
    assert history.free() == NODES * 8000
