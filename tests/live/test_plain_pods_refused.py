"""Plain pods that cannot become a job say why."""

import pytest

from scheduling.engine.states import JobState as S
from scheduling.kube.door import owners, settle
from scheduling.models import Cluster
from scheduling.session import changes
from tenants.models import Tenant
from tests.live.plain_pods import (
    MERGE,
    REQUIRED,
    condition,
    job_of,
    make,
    node_of,
    path,
    state_of,
    told,
    ungate,
)

pytestmark = pytest.mark.live


def test_a_pod_asks_for_no_more_priority_than_its_tenant_may(world):
    Tenant.objects.filter(name="team").update(max_priority=3)
    make(world, notes={"kant.io/priority": "4"})
    world.drive(lambda: told(world))
    ((_, reason, text),) = told(world)
    assert reason == "InvalidPod"
    assert text.startswith(
        "spec.priority or annotation kant.io/priority: The highest priority of jobs of "
        "tenant “team” is"
    )
    allowed = make(world, "modest", notes={"kant.io/priority": "3"})
    world.drive(lambda: state_of(allowed) == S.RUNNING)


def test_a_pod_obeys_the_rules_of_the_cluster_and_is_taken_up_when_they_allow_it(
    world, monkeypatch
):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    everything = [{"operator": "Exists"}]
    uid = make(world, tolerations=everything)
    world.drive(lambda: told(world))
    ((kind, reason, text),) = told(world)
    assert (kind, reason) == ("Warning", "DeniedByJobRules")
    assert text.startswith("spec.tolerations: A toleration without a key tolerates every taint")
    assert text.endswith("toleration_of_everything in job_rules of the cluster.")
    assert condition(world)[:2] == ("False", "DeniedByJobRules")
    assert (job_of(uid), node_of(world)) == (None, None)
    Cluster.objects.update(job_rules={"toleration_of_everything": True})
    world.drive(lambda: state_of(uid) is S.RUNNING)


def test_a_pod_that_waits_may_not_be_given_what_is_denied(world):
    gate = [{"name": "example.com/later"}]
    uid = make(world, schedulingGates=gate)
    world.drive(lambda: job_of(uid) is not None)
    notes = {"metadata": {"annotations": {"cdi.k8s.io/gpu": "vendor.com/gpu=all"}}}
    world.call("PATCH", path("plain"), notes, kind=MERGE)
    world.drive(lambda: [t for t in told(world) if t[1] == "DeniedByJobRules"])
    ungate(world, "plain")
    world.drive(lambda: condition(world)[1] == "DeniedByJobRules")
    world.drive(lambda: "denied_annotations" in job_of(uid).pod_hold)
    assert node_of(world) is None
    notes = {"metadata": {"annotations": {"cdi.k8s.io/gpu": None}}}
    world.call("PATCH", path("plain"), notes, kind=MERGE)
    world.drive(lambda: state_of(uid) is S.RUNNING)


def test_a_pod_without_a_tenant_says_so_and_is_taken_up_when_it_has_one(world):
    uid = make(world, labels={"app": "x"})
    world.drive(lambda: told(world))
    text = "Set the label kant.io/tenant to the tenant whose quota the pod uses."
    assert told(world) == [("Warning", "NoTenant", text)]
    world.drive(lambda: condition(world) == ("False", "NoTenant", text))
    relabel(world, {"kant.io/tenant": "nobody"})
    world.drive(lambda: len(told(world)) == 2)
    assert {reason for _, reason, _ in told(world)} == {"NoTenant", "UnknownTenant"}
    assert job_of(uid) is None
    relabel(world, {"kant.io/tenant": "team"})
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert job_of(uid).labels == {"app": "x"}


def relabel(world, labels, name="plain"):
    world.call("PATCH", path(name), {"metadata": {"labels": labels}}, kind=MERGE)


def test_a_pod_is_taken_up_when_its_tenant_is_made_active(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    Tenant.objects.update(is_active=False)
    uid = make(world)
    world.drive(lambda: condition(world))
    assert condition(world)[1] == "TenantInactive"
    Tenant.objects.update(is_active=True)
    world.drive(lambda: state_of(uid) is S.RUNNING)
    assert len(told(world)) == 1


def test_a_pod_that_the_api_server_did_not_let_be_told_is_told_again(world, monkeypatch):
    monkeypatch.setattr(changes, "COUNT_S", 0.5)
    monkeypatch.setattr(settle, "BUDGET_S", 0.0)
    world.fault("too-many-requests", verb="patch", resource="pods", count=1, retry_after_s=0)
    make(world, labels={})
    world.drive(lambda: condition(world) and condition(world)[1] == "NoTenant")
    assert world.call("GET", "/sim/faults")["faults"] == []


ASKED = {"nvidia.com/gpu": "1"}
WRONG = {
    "model": ({"notes": {"kant.io/gpu-models": "A100"}}, "annotation kant.io/gpu-models: There is"),
    "size": (
        {"gpus": 16},
        "spec.containers[].resources.requests[nvidia.com/gpu]: A pod asks for 16",
    ),
    "cpu": ({"requests": {"cpu": "1"}}, "The pod asks for CPU or memory only. Request nvidia.com"),
    "none": ({"requests": {"cpu": "0"}}, "The pod asks for nothing. Request nvidia.com/gpu"),
    "slice": (
        {"requests": {"nvidia.com/mig-1g.5gb": "1"}},
        "requests[nvidia.com/mig-1g.5gb]: Kant",
    ),
    "other": ({"requests": {"example.com/fpga": "1"}}, "asks for example.com/fpga, but for no GPU"),
    "fraction": (
        {"requests": {"cpu": "1"}, "notes": {"gpu-fraction": "0.5"}},
        'annotation gpu-fraction: Kant does not read it. Request kant.io/gpu-milli: "500".',
    ),
    "both": ({"requests": {**ASKED, "kant.io/gpu-milli": "500"}}, "not both"),
    "kind": ({"notes": {"kant.io/kind": "fun"}}, "annotation kant.io/kind: Choose one of training"),
    "truth": ({"notes": {"kant.io/preemptible": "no"}}, "kant.io/preemptible: Choose true or"),
    "number": ({"notes": {"kant.io/declared-seconds": "1h"}}, "Must be a whole number"),
    "range": ({"notes": {"kant.io/declared-seconds": "0"}}, "declared-seconds: Must be from 1 to"),
    "wish": (
        {"notes": {"kant.io/gpu-model": "H100"}},
        "There is no such annotation; known: kant.io/",
    ),
    "place": ({"labels": {"kant.io/tenant": "team", "kant.io/kind": "training"}}, "an annotation"),
    "affinity": (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}},
        f"spec.affinity.nodeAffinity.{REQUIRED}: Give match_expressions or match_fields",
    ),
}


def test_what_is_wrong_with_a_pod_is_said_with_its_field(world):
    made = {name: make(world, name, **given) for name, (given, _) in WRONG.items()}
    world.drive(lambda: all(told(world, name) and condition(world, name) for name in WRONG))
    for name, (_, said) in WRONG.items():
        [(kind, reason, note)] = told(world, name)
        assert kind == "Warning", name
        assert said in note
        assert condition(world, name) == ("False", reason, note)
        assert job_of(made[name]) is None
        assert not node_of(world, name)


UNKNOWN = "says which pods belong together"
GROUPS = {
    "jobset": ({"jobset.sigs.k8s.io/jobset-name": "a"}, {}, "is one of a JobSet"),
    "kubeflow": ({"training.kubeflow.org/job-name": "a"}, {}, "is one of a Kubeflow training job"),
    "lws": ({"leaderworkerset.sigs.k8s.io/name": "a"}, {}, UNKNOWN),
    "kueue": ({"kueue.x-k8s.io/pod-group-name": "a"}, {}, "Give the number of pods of the group"),
    "coscheduling": ({"scheduling.x-k8s.io/pod-group": "a"}, {}, UNKNOWN),
    "volcano": ({}, {"scheduling.k8s.io/group-name": "a"}, UNKNOWN),
    "kai": ({}, {"pod-group-name": "a"}, UNKNOWN),
    "koordinator": ({}, {"gang.scheduling.koordinator.sh/name": "a"}, "is one of a group of"),
}


def test_a_pod_of_a_group_that_is_not_there_is_not_bound_alone(world, monkeypatch):
    monkeypatch.setattr(owners, "COMES_WITHIN_S", 0.1)
    own, made = {"kant.io/tenant": "team"}, {}
    for name, (labels, notes, _) in GROUPS.items():
        made[name] = make(world, name, 1, labels={**own, **labels}, notes=notes)
    world.drive(lambda: all(told(world, name) for name in GROUPS))
    for name, (_, _, why) in GROUPS.items():
        [(type_, reason, note)] = told(world, name)
        says = "OwnerGone" if why is UNKNOWN else "WorkloadContradicts"
        assert (type_, reason) == ("Warning", says), name
        assert why in note
        assert job_of(made[name]) is None
    for name, (labels, notes, _) in GROUPS.items():
        mine = {"kant.io/gang": f"of-{name}"}, {"kant.io/gang-size": "1"}
        gang = {"labels": {**own, **labels, **mine[0]}, "notes": {**notes, **mine[1]}}
        assert make(world, f"named-{name}", 1, **gang) != made[name]
    world.drive(lambda: all(node_of(world, f"named-{name}") for name in GROUPS))
    assert not any(node_of(world, name) for name in GROUPS)


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}
UNHONOURED = {
    "volume": (
        {"volumes": [{"name": "v", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "i", "lun": 0}}]},
        "spec.volumes[0].iscsi",
    ),
    "group": ({"workloadRef": {"name": "w", "podGroup": "g"}}, "spec.workloadRef"),
}


@pytest.mark.parametrize(("spec", "field"), UNHONOURED.values(), ids=UNHONOURED)
def test_a_constraint_that_kant_does_not_honour_keeps_a_pod_from_being_bound(world, spec, field):
    uid = make(world, **spec)
    world.drive(lambda: told(world))
    [(_, reason, note)] = told(world)
    assert reason == "NotHonoured"
    assert note.startswith(f"{field}: ")
    assert (job_of(uid), node_of(world)) == (None, None)


def test_preferences_and_volumes_of_any_node_are_no_constraints(world):
    uid = make(
        world,
        affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        topologySpreadConstraints=[SPREAD | {"whenUnsatisfiable": "ScheduleAnyway"}],
        volumes=[{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s"}}],
    )
    world.drive(lambda: state_of(uid) is S.RUNNING)
