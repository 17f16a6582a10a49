"""Jobs and where they run. Only `scheduling.services` writes these rows."""

from scheduling.models.clusters import (
    NODES_WITHOUT_GPUS,
    Cluster,
    ClusterPolicy,
    NodeOrder,
    NodeRecord,
    SchedulerLease,
    StandingOrder,
    ToldGroups,
)
from scheduling.models.gpu_use import JobGpuUse
from scheduling.models.job_tables import JobTable
from scheduling.models.job_templates import JobTemplate
from scheduling.models.jobs import (
    Job,
    JobConstraints,
    JobEvent,
    JobPod,
    Placement,
    PodSet,
    unreadable_request,
)
from scheduling.models.plan_orders import PlanOrder, PlanOrderState
from scheduling.models.retention import Retention
from scheduling.models.shaped import unreadable
from scheduling.models.starts import Forecasting, StartEstimate

__all__ = [
    "NODES_WITHOUT_GPUS",
    "Cluster",
    "ClusterPolicy",
    "Forecasting",
    "Job",
    "JobConstraints",
    "JobEvent",
    "JobGpuUse",
    "JobPod",
    "JobTable",
    "JobTemplate",
    "NodeOrder",
    "NodeRecord",
    "Placement",
    "PlanOrder",
    "PlanOrderState",
    "PodSet",
    "Retention",
    "SchedulerLease",
    "StandingOrder",
    "StartEstimate",
    "ToldGroups",
    "unreadable",
    "unreadable_request",
]
