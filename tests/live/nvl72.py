"""Racks of GB200 NVL72, and the ComputeDomains that NVIDIA's DRA driver makes on them.

The objects look like those of version 26 of the driver (resource.nvidia.com/v1beta1). The tests
play its controller, kubelet plugins and daemons. For a ComputeDomain these make a
ResourceClaimTemplate in its namespace, and a daemon on each node where a pod has a channel of the
domain. The daemons belong to a DaemonSet that kube-scheduler places. Kant reads no ComputeDomain,
so the tests create none.
"""

from urllib.error import HTTPError
from uuid import uuid4

from scheduling.models import Cluster, ClusterPolicy, Job, JobEvent
from scheduling.services.scheduler.cycle import Scheduler
from tenants.models import Tenant
from tests.live.conftest import drive
from tests.live.devices import GROUP, claims, publish

DRIVER = "compute-domain.nvidia.com"
GPU = "gpu.nvidia.com"
CHANNEL, DAEMON = "compute-domain-default-channel.nvidia.com", "compute-domain-daemon.nvidia.com"
DOMAIN = "resource.nvidia.com/computeDomain"
TARGET = "resource.nvidia.com/computeDomainTarget"
GB200 = "NVIDIA-GB200"
OF_DRIVER = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}']"
PODS = "/api/v1/namespaces/default/pods"
SELECTED = {
    GPU: f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'gpu'",
    CHANNEL: f"{OF_DRIVER}.type == 'channel' && device.attributes['{DRIVER}'].id == 0",
    DAEMON: f"{OF_DRIVER}.type == 'daemon'",
}


def classes(call, **config):
    """Create the driver's DeviceClasses. `config` is the configuration that somebody may add to
    the class for channels."""
    for name, expression in SELECTED.items():
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        if name == CHANNEL and config:
            spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
        if name == GPU:
            spec["extendedResourceName"] = "nvidia.com/gpu"
        body = {"metadata": {"name": name}, "spec": spec}
        call("POST", f"{GROUP}/deviceclasses", body)


def tray(world, name, clique, *, by_plugin=True):
    """Create a node of a rack: 4 GPUs from a device plugin or from the driver, one channel, one
    daemon."""
    amounts = {"cpu": "144", "memory": "960Gi", "pods": "110"}
    amounts |= {"nvidia.com/gpu": "4"} if by_plugin else {}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.clique": clique}
    labels |= {"nvidia.com/gpu.product": GB200, "nvidia.com/gpu.count": "4"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    world.call("POST", "/api/v1/nodes", node)
    world.call("PUT", f"/api/v1/nodes/{name}/status", {**node, "status": status})
    pair = [
        {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
        for kind in ("channel", "daemon")
    ]
    publish(world, name, DRIVER, devices=pair)
    if not by_plugin:
        publish(world, name, GPU, devices=[_gpu(n) for n in range(4)])
    return name


def _gpu(number):
    said = {"type": "gpu", "productName": "NVIDIA GB200", "architecture": "Blackwell"}
    attributes = {key: {"string": value} for key, value in said.items()}
    memory = {"value": "189471Mi"}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": memory}}


class ComputeDomain:
    """What the driver's controller makes of a ComputeDomain: `template`, in `namespace`."""

    def __init__(self, world, template="channel", namespace="default", mode="Single"):
        self.world, self.template, self.namespace = world, template, namespace
        self.uid, self.mode = str(uuid4()), mode
        self.path = claims(template, "resourceclaimtemplates", namespace)
        self.config = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomainChannelConfig",
            "domainID": self.uid,
            "allocationMode": mode,
        }

    def made(self):
        """Make the template, as the controller does once it has seen the ComputeDomain."""
        opaque = {"driver": DRIVER, "parameters": self.config}
        devices = {
            "requests": [{"name": "channel", "exactly": {"deviceClassName": CHANNEL}}],
            "config": [{"requests": ["channel"], "opaque": opaque}],
        }
        meta = {
            "name": self.template,
            "labels": {DOMAIN: self.uid, TARGET: "Workload"},
            "finalizers": [DOMAIN],
        }
        body = {"metadata": meta, "spec": {"spec": {"devices": devices}}}
        folder = claims("", "resourceclaimtemplates", self.namespace)
        self.world.call("POST", folder, body)
        return self

    def deleted(self):
        """The ComputeDomain is being deleted, and its template with it."""
        self.world.call("DELETE", self.path)

    def gone(self):
        """Remove the finalizers, as the controller does at last."""
        found = self.world.call("GET", self.path)
        found["metadata"]["finalizers"] = []
        self.world.call("PUT", self.path, found)

    def daemon_on(self, node):
        """Start the daemon on a node where a pod has the channel: kube-scheduler has allocated
        its device and bound it. Returns the names of the pod and its claim."""
        claim = f"daemon-{node}"
        exactly = {"deviceClassName": DAEMON, "allocationMode": "ExactCount", "count": 1}
        spec = {"devices": {"requests": [{"name": "daemon", "exactly": exactly}]}}
        made = self.world.call("POST", claims(), {"metadata": {"name": claim}, "spec": spec})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": claim,
                "labels": {DOMAIN: self.uid},
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "DaemonSet",
                        "name": "computedomain-daemon",
                        "uid": self.uid,
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "nodeName": node,
                "resourceClaims": [{"name": "compute-domain-daemon", "resourceClaimName": claim}],
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "compute-domain-daemon",
                        "image": "nvidia/driver",
                        "resources": {"claims": [{"name": "compute-domain-daemon"}]},
                    }
                ],
            },
        }
        uid = self.world.call("POST", "/api/v1/namespaces/default/pods", pod)["metadata"]["uid"]
        result = {"request": "daemon", "driver": DRIVER, "pool": node, "device": "daemon-0"}
        made["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": claim, "uid": uid}],
        }
        self.world.call("PUT", f"{claims(claim)}/status", made)
        found = self.world.call("GET", f"/api/v1/nodes/{node}")
        found["metadata"]["labels"][DOMAIN] = self.uid
        self.world.call("PUT", f"/api/v1/nodes/{node}", found)
        return claim


def config_of(claim):
    """Return the configuration that the driver finds: its source, requests and parameters."""
    return [
        (each["source"], each.get("requests"), each["opaque"]["parameters"])
        for each in claim["status"]["allocation"]["devices"].get("config", ())
    ]


class RealRacks:
    """A real API server with no rights but those of rbac.yaml; it offers the methods that tests
    of plain pods use. The test plays the Kubernetes controller that makes and frees the pods'
    claims."""

    def __init__(self, server):
        self.call = server.request
        self.cluster = Cluster.objects.create(
            name="real", access=server.access("kant"), namespace_tenants={"*": ["*"]}
        )
        ClusterPolicy.objects.create(cluster=self.cluster)
        self.tenant = Tenant.objects.create(name="team")
        self.scheduler = Scheduler()

    def drive(self, until):
        def reached():
            self._make_claims()
            self._free_claims()
            return until()

        drive(self.scheduler, self.cluster, reached, describe=self._describe)

    def _describe(self):
        said = [
            (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"].get("conditions"))
            for pod in self.call("GET", PODS)["items"]
        ]
        events = JobEvent.objects.filter(kind="REQUEUED").values_list("reason", "message")
        return [*events[:3], *Job.objects.values_list("name", "state", "reason", "message"), *said]

    def restart_scheduler(self):
        self.scheduler.stop()
        self.scheduler = Scheduler()

    def _make_claims(self):
        for pod in self.call("GET", PODS)["items"]:
            made = pod["status"].get("resourceClaimStatuses", [])
            have = {each["name"] for each in made}
            new = [
                {"name": each["name"], "resourceClaimName": name}
                for each in pod["spec"].get("resourceClaims", ())
                if each["name"] not in have and (name := self._made(pod["metadata"], each))
            ]
            if new:
                path = f"{PODS}/{pod['metadata']['name']}"
                told = {"resourceClaimStatuses": [*made, *new]}
                self._change(path, lambda found, told=told: found["status"].update(told), "/status")

    def _made(self, pod, named):
        """Return the name of a new claim if the template that the pod names exists."""
        for template in self.call("GET", claims("", "resourceclaimtemplates"))["items"]:
            if template["metadata"]["name"] == named.get("resourceClaimTemplateName"):
                owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
                owner |= {key: pod[key] for key in ("name", "uid")}
                meta = {
                    "generateName": f"{pod['name']}-{named['name']}-",
                    "annotations": {"resource.kubernetes.io/pod-claim-name": named["name"]},
                    "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
                }
                body = {"metadata": meta, "spec": template["spec"]["spec"]}
                return self.call("POST", claims(), body)["metadata"]["name"]
        return None

    def _free_claims(self):
        there = {pod["metadata"]["uid"] for pod in self.call("GET", PODS)["items"]}
        for each in self.call("GET", claims())["items"]:
            owners = {owner["uid"] for owner in each["metadata"].get("ownerReferences", ())}
            if owners and not owners & there:
                self._delete(claims(each["metadata"]["name"]))

    def _change(self, path, change, part=""):
        """Change an object that others write too."""
        while True:
            found = self.call("GET", path)
            change(found)
            try:
                return self.call("PUT", path + part, found)
            except HTTPError as error:
                if error.code != 409:
                    raise

    def _delete(self, path):
        """Delete an object in spite of its finalizers."""
        if "status" in self.call("GET", path):
            self._change(path, lambda found: found.update(status={}), "/status")
        try:
            self.call("DELETE", path)
            self._change(path, lambda found: found["metadata"].update(finalizers=[]))
        except HTTPError as error:  # it is gone as soon as nothing protects it
            if error.code != 404:
                raise

    def close(self):
        """Leave nothing to the next test but what every test deletes."""
        self.scheduler.stop()
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            for each in self.call("GET", f"{GROUP}/{kind}")["items"]:
                self._delete(claims(each["metadata"]["name"], kind))
        for kind in ("resourceslices", "deviceclasses"):
            self.call("DELETE", f"{GROUP}/{kind}")
