"""Random histories of jobs with volume claims: each job ends, nothing is held twice, and nothing
is left over."""

import random

import pytest

from scheduling.engine.states import TERMINAL, WAITING
from scheduling.engine.states import JobState as S
from scheduling.models import Job, Placement
from scheduling.models.jobs import LIVE_PLACEMENTS
from tests.cases import seeds
from tests.live.volumes import claim, claims, of_class

pytestmark = pytest.mark.live

CLASSES = ("standard", "local", "picky", "absent")
CLAIMS = tuple(f"data-{number}" for number in range(5))


class History:
    def __init__(self, world, seed):
        self.world = world
        self.choose = random.Random(seed)
        self.jobs = []
        self.there = set()
        names = [n["metadata"]["name"] for n in world.call("GET", "/api/v1/nodes")["items"]]
        fails = ",".join(self.choose.sample(sorted(names), 2))
        of_class(world, "picky", topologyKey="kubernetes.io/hostname", failOn=fails)

    def step(self):
        acts = [self.submit, self.submit, self.make_claim, self.cancel, self.restart]
        self.choose.choice(acts)()
        before = self.choose.randrange(1, 4)
        passes = iter(range(before))
        self.world.drive(lambda: next(passes, None) is None)

    def submit(self):
        names = self.choose.sample(CLAIMS, self.choose.choice((1, 1, 1, 2)))
        volumes = [
            {
                "name": name,
                "persistent_volume_claim": name,
                "mount_path": f"/{name}",
                "read_only": False,
            }
            for name in names
        ]
        pods = self.choose.randrange(1, 4)
        extra = self.choose.choice(({}, {"gang": False}, {"min_count": 1}))
        made = f"job-{len(self.jobs)}"
        fields = {"pods": pods, "gpus": self.choose.choice((1, 4, 8)), "run_s": 0.3}
        self.jobs.append(self.world.submit(made, volumes=volumes, **fields, **extra))

    def make_claim(self):
        if missing := sorted(set(CLAIMS) - self.there):
            name = self.choose.choice(missing)
            self.there.add(name)
            claim(self.world, name, storageClassName=self.choose.choice(CLASSES))

    def cancel(self):
        open_jobs = [job for job in self.jobs if self.world.state(job) not in TERMINAL]
        if open_jobs:
            self.world.cancel(self.choose.choice(open_jobs))

    def restart(self):
        self.world.restart_scheduler()

    def finish(self):
        """Let all claims become bound; cancel jobs whose volumes no node can mount together."""
        while self.there != set(CLAIMS):
            self.make_claim()
        of_class(self.world, "absent")
        never = ("ExceedsCapacity", "NoMatchingGpuType")
        self.world.drive(
            lambda: all(
                job.state in TERMINAL or (job.state in WAITING and job.reason in never)
                for job in Job.objects.all()
            )
        )
        for job in Job.objects.filter(reason__in=never).exclude(state__in=list(TERMINAL)):
            self.world.cancel(job)
        self.world.drive(lambda: self.world.free_gpus() == 32_000)
        self.world.drive(
            lambda: not Placement.objects.filter(state__in=list(LIVE_PLACEMENTS)).exists()
        )


@pytest.mark.parametrize("seed", seeds(4))
def test_every_job_with_volumes_ends_and_leaves_nothing(world, seed):
    world.set_policy(blame_s=0.5)
    history = History(world, seed)
    for _ in range(25):
        history.step()
    history.finish()
    assert world.audit()["double_holdings"] == []
    assert {S(state) for state in Job.objects.values_list("state", flat=True)} <= TERMINAL
    for name in CLAIMS:
        spec = world.call("GET", claims(name))["spec"]
        used = Job.objects.filter(state=S.SUCCEEDED, pod_sets__volumes__icontains=name)
        assert spec.get("volumeName") or not used.exists()
