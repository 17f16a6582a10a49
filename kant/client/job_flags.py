"""The flags that are fields of a job, made from their definition and not by hand:
python -m scheduling.job_fields.flags > kant/client/job_flags.py"""

# fmt: off
# ruff: noqa: E501
from typing import NamedTuple


class Flag(NamedTuple):
    """`names` with spaces between; `reads`: how its text is read (`kant.client.submission`).
    `again`: given several times, `of_pods`: said of pods, `changes`: may be asked for anew while
    the job waits, `or_none`: and be taken away."""

    field: str
    names: str
    metavar: str
    says: str
    reads: str
    again: bool = False
    of_pods: bool = False
    changes: bool = False
    or_none: bool = False


FLAGS = (
    Flag("name", "-n --name", "",
         "name of the job (default: the first word of the command)",
         "text"),
    Flag("tenant", "-t --tenant", "",
         "tenant whose quota the job uses (default: yours, if you have one)",
         "text"),
    Flag("cluster", "-c --cluster", "",
         "cluster to run on, if there are several",
         "text"),
    Flag("kind", "--kind", "KIND",
         "training, inference, development, …",
         "text"),
    Flag("priority", "--priority", "N",
         "higher goes first",
         "number", changes=True),
    Flag("gang", "--gang", "",
         "all pods start together (default)",
         "yes_or_no"),
    Flag("preemptible", "--preemptible", "",
         "whether others may preempt the job (default: yes); where lenders reclaim, a job that cannot be preempted cannot borrow",
         "yes_or_no"),
    Flag("declared_s", "--time", "TIME",
         "expected run time, e.g. 90m or 1d12h; the job may start sooner",
         "time", changes=True, or_none=True),
    Flag("run_limit_s", "--time-limit", "TIME",
         "stop the job after this long",
         "time", changes=True, or_none=True),
    Flag("checkpoint_notice_s", "--checkpoint-notice", "TIME",
         "how long before deletion pods are warned to save their work",
         "time", changes=True, or_none=True),
    Flag("max_restarts", "--max-restarts", "N",
         "restarts of the job, or of a pod of it, after its program failed",
         "number", changes=True),
    Flag("not_before", "--begin", "WHEN",
         "earliest start, e.g. 2030-01-31T12:00Z",
         "text", changes=True, or_none=True),
    Flag("held", "--hold", "",
         "wait for kant release",
         "yes"),
    Flag("strategy", "--strategy", "NAME",
         "placement strategy instead of the cluster's",
         "text"),
    Flag("labels", "--label", "NAME=VALUE",
         "a label of the job",
         "pair", again=True),
    Flag("replicas", "-r --replicas", "N",
         "pods (1)",
         "number", of_pods=True),
    Flag("min_count", "--min-count", "N",
         "fewest pods to start with; the gang then grows (elastic)",
         "number", of_pods=True),
    Flag("gpu_types", "-G --gpu-type", "TYPE",
         "GPU type it may run on; again for others, the preferred first",
         "text", again=True, of_pods=True),
    Flag("gpus", "-g --gpus", "N",
         "GPUs of each pod",
         "number", of_pods=True),
    Flag("gpu_milli", "--gpu-milli", "N",
         "a share of one GPU, in thousandths",
         "number", of_pods=True),
    Flag("gpu_memory_mib", "--gpu-memory", "MIB",
         "a share of one GPU, by its memory",
         "number", of_pods=True),
    Flag("cpu_milli", "--cpu", "CORES",
         "CPU of each pod, e.g. 8",
         "cores", of_pods=True),
    Flag("memory_mib", "--memory", "MIB",
         "memory of each pod",
         "number", of_pods=True),
    Flag("nics", "--nics", "N",
         "NICs that each pod holds alone",
         "number", of_pods=True),
    Flag("node_selector", "--node-selector", "LABEL=VALUE",
         "only nodes with this label",
         "pair", again=True, of_pods=True),
    Flag("node_affinity", "-x --exclude-node", "NODE",
         "not on this node; again for others",
         "not_node", again=True, of_pods=True),
    Flag("required_level", "--within", "LEVEL",
         "all pods within one group of this network level, e.g. leaf",
         "text", of_pods=True),
    Flag("preferred_level", "--near", "LEVEL",
         "the same, if possible",
         "text", of_pods=True),
    Flag("max_per_node", "--max-per-node", "N",
         "most pods of the job on one node",
         "number", of_pods=True),
    Flag("image", "--image", "",
         "container image",
         "text", of_pods=True),
    Flag("env", "-e --env", "NAME=VALUE",
         "environment of the containers",
         "pair", again=True, of_pods=True),
    Flag("env_from_secrets", "--env-from-secret", "NAME=SECRET/KEY",
         "the same, its value from a key of a secret",
         "secret_key", again=True, of_pods=True),
    Flag("service_account", "--service-account", "NAME",
         "service account of the pods",
         "text", of_pods=True),
    Flag("image_pull_secrets", "--image-pull-secret", "NAME",
         "secret by which the image is pulled; again for others",
         "text", again=True, of_pods=True),
    Flag("shm_mib", "--shm", "MIB",
         "size of /dev/shm of each pod",
         "number", of_pods=True),
)
