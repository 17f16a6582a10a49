"""Kant honours or refuses what a pod says, and never ignores it: field by field of core/v1.

Each field is in one table. Either it changes what Kant knows of the pod (other tests show that Kant
honours it), or Kant refuses it by name, or it does not affect where the pod can run. A field that a
newer Kubernetes adds fails the last test until somebody classifies it.
"""

import json

import msgspec
import pytest

from scheduling.kube.translate import plain_pods
from scheduling.kube.translate.objects import KubePod
from scheduling.kube.translate.pods import pod_translator

COUNTS = "counts"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
PODS = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
SPREAD = {**PODS, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}
CPU = {"requests": {"cpu": "1"}}
PORT = {"containerPort": 80, "hostPort": 80}


def affinity(kind, **rules):
    return {"affinity": {kind: rules}}


def wish(**term):
    return [{"weight": 1, "podAffinityTerm": {**PODS, **term}}]


def container(**fields):
    return {"containers": [{"name": "c", "image": "i", **fields}]}


def volume(name, **source):
    return {"volumes": [{"name": "v", name: source}]}


# For each field: a spec that uses it, one that does not, and what Kant does: COUNTS, or the field
# that its refusal names. Fields left out here do not affect where a pod can run.
SPEC = {
    "affinity": [
        (affinity("nodeAffinity", **{REQUIRED: {"nodeSelectorTerms": [TERM]}}), {}, COUNTS),
        (affinity("nodeAffinity", **{PREFERRED: [{"weight": 1, "preference": TERM}]}), {}, COUNTS),
        (affinity("podAffinity", **{REQUIRED: [PODS]}), {}, COUNTS),
        (affinity("podAntiAffinity", **{REQUIRED: [PODS]}), {}, COUNTS),
        (affinity("podAffinity", **{PREFERRED: wish()}), {}, COUNTS),
        (affinity("podAntiAffinity", **{PREFERRED: wish()}), {}, COUNTS),
    ],
    "containers": [(container(resources=CPU), container(), COUNTS)],
    "hostNetwork": [
        (
            {"hostNetwork": True, **container(ports=[{"containerPort": 80}])},
            container(ports=[{"containerPort": 80}]),
            COUNTS,
        )
    ],
    "initContainers": [({"initContainers": [{"name": "i", "resources": CPU}]}, {}, COUNTS)],
    "nodeName": [({"nodeName": "n"}, {}, COUNTS)],
    "nodeSelector": [({"nodeSelector": {"zone": "a"}}, {}, COUNTS)],
    "os": [
        ({"os": {"name": "windows"}}, {"os": {"name": "linux"}}, COUNTS),
        ({"os": {"name": "linux"}}, {}, COUNTS),
    ],
    "overhead": [({"overhead": {"cpu": "250m"}}, {}, COUNTS)],
    "preemptionPolicy": [({"preemptionPolicy": "Never"}, {}, COUNTS)],
    "priority": [({"priority": 5}, {}, COUNTS)],
    "resourceClaims": [
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}, {}, COUNTS)
    ],
    "resources": [({"resources": {"requests": {"cpu": "2"}}}, {}, COUNTS)],
    "schedulerName": [({"schedulerName": "other"}, {}, COUNTS)],
    "schedulingGates": [({"schedulingGates": [{"name": "g"}]}, {}, COUNTS)],
    "schedulingGroup": [({"schedulingGroup": {"podGroupName": "g"}}, {}, COUNTS)],
    "tolerations": [({"tolerations": [{"key": "k", "operator": "Exists"}]}, {}, COUNTS)],
    "topologySpreadConstraints": [({"topologySpreadConstraints": [SPREAD]}, {}, COUNTS)],
    "volumes": [(volume("emptyDir"), volume("flocker"), COUNTS)],
    "workloadRef": [({"workloadRef": {"name": "w"}}, {}, "spec.workloadRef")],
}
CONTAINER = {
    "name": [],  # links a resized pod's status to the container
    "ports": [(container(ports=[PORT]), container(), COUNTS)],
    "resources": [
        (container(resources={"limits": {"nvidia.com/gpu": "1"}}), container(), COUNTS),
        (container(resources={"requests": {"example.com/a": "1"}}), container(), COUNTS),
        (container(resources={"requests": {"odd": "1"}}), container(), "spec.containers[]"),
    ],
    "restartPolicy": [
        (
            {"initContainers": [{"name": "i", "resources": CPU, "restartPolicy": "Always"}]},
            {"initContainers": [{"name": "i", "resources": CPU}]},
            COUNTS,
        )
    ],
    # For display, and for what a tenant may name.
    "image": [(container(image="j"), container(), COUNTS)],
    "command": [(container(command=["a"]), container(), COUNTS)],
    "args": [(container(args=["a"]), container(), COUNTS)],
    "env": [(container(env=[{"name": "A"}]), container(), COUNTS)],
}
HERE = container(**CPU, resources=CPU)
CONTAINER["restartPolicy"][0] = tuple(
    {**HERE, **each} if isinstance(each, dict) else each for each in CONTAINER["restartPolicy"][0]
)
NOT_READY = {"key": "k", "operator": "Exists"}
TOLERATION = {
    name: [({"tolerations": [{**NOT_READY, **more}]}, {"tolerations": [NOT_READY]}, COUNTS)]
    for name, more in {
        "key": {"key": "other"},
        "operator": {"operator": "Equal"},
        "value": {"operator": "Equal", "value": "v"},
        "effect": {"effect": "NoSchedule"},
        "tolerationSeconds": {"tolerationSeconds": 5},
    }.items()
}
TOPOLOGY_SPREAD = {
    name: [
        (
            {"topologySpreadConstraints": [{**SPREAD, **more}]},
            {"topologySpreadConstraints": [SPREAD]},
            COUNTS,
        )
    ]
    for name, more in {
        "maxSkew": {"maxSkew": 2},
        "topologyKey": {"topologyKey": "rack"},
        "whenUnsatisfiable": {"whenUnsatisfiable": "ScheduleAnyway"},
        "labelSelector": {"labelSelector": {"matchLabels": {"app": "y"}}},
        "minDomains": {"minDomains": 3},
        "nodeAffinityPolicy": {"nodeAffinityPolicy": "Ignore"},
        "nodeTaintsPolicy": {"nodeTaintsPolicy": "Honor"},
        "matchLabelKeys": {"matchLabelKeys": ["rev"]},
    }.items()
}
POD_AFFINITY = {
    name: [
        (affinity(kind, **{how: of(more)}), affinity(kind, **{how: of({})}), COUNTS)
        for kind in ("podAffinity", "podAntiAffinity")
        for how, of in ((REQUIRED, lambda m: [{**PODS, **m}]), (PREFERRED, lambda m: wish(**m)))
    ]
    for name, more in {
        "topologyKey": {"topologyKey": "rack"},
        "labelSelector": {"labelSelector": {"matchLabels": {"app": "y"}}},
        "namespaces": {"namespaces": ["other"]},
        "namespaceSelector": {"namespaceSelector": {"matchLabels": {"team": "a"}}},
        "matchLabelKeys": {"matchLabelKeys": ["rev"]},
        "mismatchLabelKeys": {"mismatchLabelKeys": ["rev"]},
    }.items()
}
NOT_EVERYWHERE = (
    *("awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "fc", "flexVolume", "flocker"),
    *("gcePersistentDisk", "gitRepo", "iscsi", "photonPersistentDisk", "portworxVolume"),
    *("quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume"),
)
VOLUME = {
    "persistentVolumeClaim": [({"volumes": [{"name": "v", **CLAIM}]}, {}, COUNTS)],
    "ephemeral": [(volume("ephemeral", volumeClaimTemplate={"spec": {}}), {}, COUNTS)],
    **{name: [(volume(name), {}, f"spec.volumes[0].{name}")] for name in NOT_EVERYWHERE},
}
TABLES = {
    "PodSpec": SPEC,
    "Container": CONTAINER,
    "Toleration": TOLERATION,
    "TopologySpreadConstraint": TOPOLOGY_SPREAD,
    "PodAffinityTerm": POD_AFFINITY,
    "Volume": VOLUME,
}
OLDER = {"workloadRef"}  # in Kubernetes 1.35 only
# Why these do not affect where a pod can run.
ELSEWHERE = {
    "PodSpec": {
        "the kubelet's": "activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy "
        "enableServiceLinks ephemeralContainers hostAliases hostIPC hostPID hostUsers hostname "
        "hostnameOverride imagePullSecrets restartPolicy securityContext setHostnameAsFQDN "
        "shareProcessNamespace subdomain terminationGracePeriodSeconds",
        "that of Services": "readinessGates",
        "written as another field by the API server": "priorityClassName runtimeClassName "
        "serviceAccount",
        "of who may use what, `services.plain_pods.rules`": "serviceAccountName",
    },
    "Container": {
        "the kubelet's": "envFrom imagePullPolicy lifecycle livenessProbe readinessProbe "
        "resizePolicy restartPolicyRules securityContext startupProbe stdin stdinOnce "
        "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
    },
    "Volume": {
        "of every node": "cephfs configMap csi downwardAPI emptyDir glusterfs hostPath image name "
        "nfs projected secret",
    },
}
CASES = [
    pytest.param(*case, id=f"{kind}.{field}-{number}")
    for kind, table in TABLES.items()
    for field, cases in table.items()
    for number, case in enumerate(cases)
]


def facts(spec):
    labels = {"rev": "r", "app": "x"}
    meta = {"name": "p", "uid": "u", "namespace": "home", "labels": labels}
    raw = {"metadata": meta, "spec": {"schedulerName": "kant", **container(), **spec}}
    return pod_translator("kant")(msgspec.json.decode(json.dumps(raw), type=KubePod))


@pytest.mark.parametrize(("used", "unused", "how"), CASES)
def test_what_a_pod_says_is_not_ignored(used, unused, how):
    found, without = facts(used), facts(unused)
    if how == COUNTS:
        assert found != without
        assert found.plain is None or not found.plain.unhonoured
    else:
        [refused] = found.plain.unhonoured
        assert refused.field.startswith(how)
        assert refused.remedy
        assert not without.plain.unhonoured


@pytest.mark.apiserver
def read_one(spec, number):
    labels = {"kant.io/job": "x"} if number % 3 == 0 else {}
    meta = {"name": f"p{number}", "namespace": "n", "labels": labels}
    raw = {"metadata": meta, "spec": {"schedulerName": "kant", **spec}}
    return pod_translator("kant")(msgspec.json.decode(json.dumps(raw), type=KubePod))


def test_a_pod_is_read_the_same_after_others():
    """What Kant remembers of one spec does not leak into another."""
    specs = [
        spec for cases in SPEC.values() for used, unused, _ in cases for spec in (used, unused)
    ]

    alone = []
    for number, spec in enumerate(specs):
        plain_pods._of_spec.cache_clear()
        alone.append(read_one(spec, number))
    plain_pods._of_spec.cache_clear()
    assert [read_one(spec, number) for number, spec in enumerate(specs)] == alone
    assert [read_one(spec, number) for number, spec in enumerate(specs)] == alone
    assert plain_pods._of_spec.cache_info().hits > len(specs)


def test_every_field_that_a_real_server_knows_is_in_a_table(kube_apiserver):
    schemas = kube_apiserver.api.ok("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    for kind, table in TABLES.items():
        known = {*table, *" ".join(ELSEWHERE.get(kind, {}).values()).split()}
        there = schemas[f"io.k8s.api.core.v1.{kind}"]["properties"].keys()
        assert (there - known, known - there - OLDER) == (set(), set()), kind


# --- pods whose spec was changed where they run ---------------------------------------------------
def resized(asked, has, allocated, condition=None, generation=2):
    status = {
        "containerStatuses": [
            {"name": "c", "resources": {"requests": {"cpu": has}}, "allocatedResources": allocated}
        ],
        "conditions": [condition] if condition else [],
    }
    spec = {**container(resources={"requests": {"cpu": asked}}), "nodeName": "n"}
    meta = {"name": "p", "uid": "u", "namespace": "home", "generation": generation}
    raw = json.dumps({"metadata": meta, "spec": spec, "status": status})
    return pod_translator("kant")(msgspec.json.decode(raw, type=KubePod)).cpu_milli


PENDING = {"type": "PodResizePending", "status": "True"}


@pytest.mark.parametrize(
    ("pod", "cpu_milli"),
    [
        (("2", "1", {"cpu": "1"}), 2000),  # it grows
        (("1", "2", {"cpu": "1"}), 2000),  # it shrinks, but its containers have not yet
        (("1", "1", {"cpu": "2"}), 2000),
        (("4", "1", {"cpu": "1"}, {**PENDING, "reason": "Deferred"}), 4000),
        (("4", "1", {"cpu": "1"}, {**PENDING, "reason": "Infeasible"}), 1000),
        (("2", "1", None), 2000),
        (("1", "2", {"cpu": "2"}, None, 1), 1000),  # as it was made
    ],
)
def test_a_pod_that_is_resized_holds_the_larger_of_both(pod, cpu_milli):
    assert resized(*pod) == cpu_milli
