"""Volume claims that people make."""

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
MERGE = "merge-patch+json"
SIZE = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
MOUNT = {
    "name": "data",
    "persistent_volume_claim": "data",
    "mount_path": "/data",
    "read_only": False,
}
PLAIN = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


def claims(name="", namespace="kant-jobs"):
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}".rstrip("/")


def claim(world, name="data", namespace="kant-jobs", **spec):
    body = {"metadata": {"name": name}, "spec": {**SIZE, **spec}}
    world.drive(lambda: world.scheduler.led)  # a person who makes the namespace
    return world.call("POST", claims(namespace=namespace), body)["metadata"]["uid"]


def of_class(world, name, provisioner="sim.kant.io/disk", **parameters):
    body = {"metadata": {"name": name}, "provisioner": provisioner, "parameters": parameters}
    world.call("POST", CLASSES, body | {"volumeBindingMode": "WaitForFirstConsumer"})
