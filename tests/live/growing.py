"""A cluster that may grow by nodes with B200 GPUs, and its autoscaler."""

B200 = "NVIDIA-B200"
GROUP = {"gpu_type": B200, "gpus": 8, "cpu_milli": 64_000, "memory_mib": 512_000, "max_nodes": 2}
SELECTOR = {"nodeSelector": {"nvidia.com/gpu.product": B200}}


def add_node(world, name="b200-a"):
    """Add a node like those of the group, as the autoscaler's cloud would."""
    [like] = world.call("GET", "/api/v1/nodes")["items"][:1]
    labels = {**like["metadata"]["labels"], "nvidia.com/gpu.product": B200}
    labels |= {"kubernetes.io/hostname": name, "nvidia.com/gpu.count": "8"}
    meta = {"name": name, "labels": labels, "annotations": like["metadata"].get("annotations", {})}
    world.call(
        "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}
    )
    status = {"status": {k: like["status"][k] for k in ("capacity", "allocatable", "conditions")}}
    world.call("PATCH", f"/api/v1/nodes/{name}/status", status, kind="merge-patch+json")


def stand_ins(world):
    """Return {(pod set, ordinal): (name, reason of PodScheduled)} of the stand-in pods."""
    found = {}
    for name, pod in world.pods().items():
        labels = pod["metadata"]["labels"]
        if "kant.io/stands-in-for" in labels:
            told = [c["reason"] for c in pod["status"].get("conditions", ())
                    if c["type"] == "PodScheduled"]  # fmt: skip
            at = int(labels["kant.io/pod-set"]), int(labels["kant.io/ordinal"])
            found[at] = name, told[0] if told else ""
    return found


def all_unschedulable(world, count):
    told = stand_ins(world)
    return len(told) == count and {reason for _, reason in told.values()} == {"Unschedulable"}


def b200_job(world, name="wide", **fields):
    job = world.submit(name, **fields)
    job.pod_sets.update(gpu_models=[B200])
    return job
