"""Small fleets and arrivals for tests of the simulator."""

from scheduling.engine.types import (
    Device,
    JobRequest,
    Node,
    PodSetSpec,
    Policy,
    QuotaSpec,
    TenantSpec,
)
from scheduling.simulator.loop import Simulation
from scheduling.simulator.model import Arrival


def machines(nodes=2, gpus=8, leaf_size=2):
    return tuple(
        Node(
            f"n{i:03}",
            "H100",
            tuple(Device(k) for k in range(gpus)),
            topology=(f"l{i // leaf_size}", "s0", "x"),
            cpu_milli=10**6,
            memory_mib=10**6,
        )
        for i in range(nodes)
    )


def arrival(name, at, duration, *, pods=1, gpus=8, gang=True, tenant="a", min_count=None, **more):
    pod_sets = (PodSetSpec("main", pods, gpus, ("H100",), min_count=min_count),)
    wishes = {
        k: more.pop(k)
        for k in ("priority", "declared_s", "preemptible", "after", "after_ok", "kind", "queue")
        if k in more
    }
    return Arrival(JobRequest(name, tenant, at, pod_sets, gang=gang, **wishes), duration, **more)


def simulation(arrivals, *, nodes=2, gpus=8, policy=None, quota=10**9, of=Simulation, **more):
    return of(
        machines(nodes, gpus),
        arrivals,
        policy=policy or Policy(),
        tenants=(TenantSpec("a"), TenantSpec("b")),
        quotas=(QuotaSpec("a", "H100", quota), QuotaSpec("b", "H100", quota)),
        **more,
    )


def rows(outcome):
    """Return {job id: (started, ended, state name)} of a finished run."""
    from scheduling.simulator.observe import STATE_NAMES

    jobs = outcome.observer.jobs
    return {
        jobs.ids[i]: (jobs.started[i], jobs.ended[i], STATE_NAMES[jobs.state[i]])
        for i in range(len(jobs))
    }
