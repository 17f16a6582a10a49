"""The flags of `kant submit` that are fields of a job. Generated; do not edit:
python -m scheduling.job_fields.flags > kant/client/job_flags.py"""

# fmt: off
# ruff: noqa: E501
from typing import NamedTuple


class CliFlag(NamedTuple):
    """One flag. `names`: separated by spaces. `reads`: how its text is parsed
    (`kant.client.submission`). `again`: it may be repeated. `of_pods`: it is about pods. `changes`:
    `kant change` accepts it while the job waits. `or_none`: `kant change` may remove the value."""

    field: str
    names: str
    metavar: str
    reads: str
    says: str
    again: bool = False
    of_pods: bool = False
    changes: bool = False
    or_none: bool = False


FLAGS = (
    CliFlag("name", "-n --name", "", "text",
         says="name of the job (default: the first word of the command)"),
    CliFlag("tenant", "-t --tenant", "", "text",
         says="tenant whose quota the job uses (default: yours, if you have one)"),
    CliFlag("cluster", "-c --cluster", "", "text",
         says="cluster to run on; any: where it starts first (default, if there are several)"),
    CliFlag("cluster_selector", "--cluster-selector", "LABEL=VALUE", "pair", again=True,
         says="only a cluster with this label"),
    CliFlag("preferred_cluster_labels", "--prefer-cluster", "LABEL=VALUE", "pair", again=True,
         says="prefer clusters with this label, if the job starts equally soon"),
    CliFlag("queue", "-q --queue", "NAME", "text", changes=True,
         says="queue of the tenant (default: default)"),
    CliFlag("kind", "--kind", "KIND", "text",
         says="training, inference, development, …"),
    CliFlag("priority", "--priority", "N", "number", changes=True,
         says="higher goes first"),
    CliFlag("gang", "--gang", "", "yes_or_no",
         says="all pods start together (default: yes)"),
    CliFlag("preemptible", "--preemptible", "", "yes_or_no",
         says="whether others may preempt the job (default: yes); where lenders reclaim, a job that cannot be preempted cannot borrow"),
    CliFlag("preempts", "--preempts", "", "yes_or_no",
         says="whether the job may preempt others (default: yes)"),
    CliFlag("uses_spares", "--spares", "", "yes",
         says="the job may start on hot-spare nodes"),
    CliFlag("declared_s", "--time", "TIME", "time", changes=True, or_none=True,
         says="expected run time, e.g. 90m or 1d12h; the job may start sooner"),
    CliFlag("run_limit_s", "--time-limit", "TIME", "time", changes=True, or_none=True,
         says="stop the job after this long"),
    CliFlag("checkpoint_notice_s", "--checkpoint-notice", "TIME", "time", changes=True, or_none=True,
         says="how long before deletion pods are warned to save their work"),
    CliFlag("max_restarts", "--max-restarts", "N", "number", changes=True,
         says="most restarts after its program failed"),
    CliFlag("not_before", "--begin", "WHEN", "text", changes=True, or_none=True,
         says="earliest start, e.g. 2030-01-31T12:00Z"),
    CliFlag("held", "--hold", "", "yes",
         says="wait for kant release"),
    CliFlag("strategy", "--strategy", "NAME", "text",
         says="placement strategy instead of the cluster's"),
    CliFlag("labels", "--label", "NAME=VALUE", "pair", again=True,
         says="a label of the job"),
    CliFlag("replicas", "-r --replicas", "N", "number", of_pods=True,
         says="pods (default: 1)"),
    CliFlag("min_count", "--min-count", "N", "number", of_pods=True,
         says="fewest pods to start with, as an elastic gang"),
    CliFlag("gpu_types", "-G --gpu-type", "TYPE", "text", again=True, of_pods=True,
         says="GPU type it may run on; repeat for more, the preferred first"),
    CliFlag("gpus", "-g --gpus", "N", "number", of_pods=True,
         says="GPUs of each pod"),
    CliFlag("gpu_milli", "--gpu-milli", "N", "number", of_pods=True,
         says="a share of one GPU, in thousandths"),
    CliFlag("gpu_memory_mib", "--gpu-memory", "MIB", "number", of_pods=True,
         says="a share of one GPU, by its memory"),
    CliFlag("cpu_milli", "--cpu", "CORES", "cores", of_pods=True,
         says="CPU of each pod, e.g. 8"),
    CliFlag("memory_mib", "--memory", "MIB", "number", of_pods=True,
         says="memory of each pod"),
    CliFlag("nics", "--nics", "N", "number", of_pods=True,
         says="NICs that each pod holds alone"),
    CliFlag("node_selector", "--node-selector", "LABEL=VALUE", "pair", again=True, of_pods=True,
         says="only nodes with this label"),
    CliFlag("node_affinity", "-x --exclude-node", "NODE", "not_node", again=True, of_pods=True,
         says="not on this node; repeat for more"),
    CliFlag("required_level", "--within", "LEVEL", "text", of_pods=True,
         says="all pods within one group of this network level, e.g. leaf"),
    CliFlag("preferred_level", "--near", "LEVEL", "text", of_pods=True,
         says="the same, if possible"),
    CliFlag("slice_size", "--slice-size", "N", "number", of_pods=True,
         says="pods per slice: --within applies to each slice"),
    CliFlag("balance_level", "--balance", "LEVEL", "text", of_pods=True,
         says="spread the pods evenly over the groups of this level"),
    CliFlag("max_per_node", "--max-per-node", "N", "number", of_pods=True,
         says="most pods of the job on one node"),
    CliFlag("max_per_leaf", "--max-per-leaf", "N", "number", of_pods=True,
         says="most pods of the job in one leaf"),
    CliFlag("device_claims", "--device-claim", "NAME=CLASS:COUNT", "device_claim", again=True, of_pods=True,
         says="device claim of each pod, or NAME=template/TEMPLATE; --gpus counts the GPUs in it, too"),
    CliFlag("image", "--image", "", "text", of_pods=True,
         says="container image"),
    CliFlag("env", "-e --env", "NAME=VALUE", "pair", again=True, of_pods=True,
         says="environment of the containers"),
    CliFlag("env_from_secrets", "--env-from-secret", "NAME=SECRET/KEY", "secret_key", again=True, of_pods=True,
         says="the same, its value from a key of a secret"),
    CliFlag("annotations", "--annotation", "NAME=VALUE", "pair", again=True, of_pods=True,
         says="an annotation of the pods"),
    CliFlag("service_account", "--service-account", "NAME", "text", of_pods=True,
         says="service account of the pods"),
    CliFlag("image_pull_secrets", "--image-pull-secret", "NAME", "text", again=True, of_pods=True,
         says="secret for pulling the image; repeat for more"),
    CliFlag("shm_mib", "--shm", "MIB", "number", of_pods=True,
         says="size of /dev/shm of each pod"),
    CliFlag("runtime_class", "--runtime-class", "NAME", "text", of_pods=True,
         says="runtime class of the pods"),
    CliFlag("host_network", "--host-network", "", "yes", of_pods=True,
         says="use the network of the node"),
    CliFlag("priority_class", "--priority-class", "NAME", "text", of_pods=True,
         says="priority class of the pods on their node"),
)
