"""What rows say of clusters, for jobs that may run on any of them.

Each question is asked once for all jobs of a request. Nothing here waits for a cluster: rows are as
old as its scheduler's last report.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Q, Sum
from django.db.models.fields.json import KeyTransform

from scheduling.engine.cluster.constraints import blocking_taint
from scheduling.engine.cluster_choice.estimate import (
    FOR_PLACES,
    FreeNodes,
    PodsOfJob,
    Queued,
    ReturnedGpus,
    Supply,
    refused_by,
)
from scheduling.engine.placement.request import HYPER_NODE
from scheduling.engine.quota.book import QuotaBook
from scheduling.engine.states import WAITING
from scheduling.engine.types import DEFAULT_LEVELS, MILLI, PodSetSpec, Taint, Toleration
from scheduling.models import NodeRecord, Placement, PodSet
from scheduling.models.jobs import LIVE_PLACEMENTS
from scheduling.queries import quota_use

_COLUMN = {**{name: name for name in DEFAULT_LEVELS}, HYPER_NODE: "hyper_node"}


class SupplyFacts:
    """Facts of these clusters, by primary key; kept as long as this object lives."""

    def __init__(self, clusters: Collection[int]) -> None:
        self._clusters = sorted(clusters)
        self._rooms: dict[Any, list[Any]] = {}
        self._queued: dict[int, dict[int, list[Queued]]] = {}
        self._cpu_queued: dict[int, dict[int, int]] = {}
        self._endings: dict[int, list[ReturnedGpus]] | None = None
        self._book: QuotaBook | None = None
        self._promised: dict[int, list[Queued]] = defaultdict(list)

    def promise(self, cluster: int, pod_sets: Collection[PodSetSpec], times: int) -> None:
        """Count jobs that go there but are not written yet, ahead of later ones."""
        for s in pod_sets:
            if s.gpus:
                amount = times * s.count * s.milli_per_pod
                self._promised[cluster].append(Queued(s.gpu_models, amount))

    def supply(self, cluster: int, asked: PodsOfJob, priority: int) -> Supply:
        """Return what is there for a job of this priority.

        Counts nodes that match its selector and whose taints it tolerates. Node affinity is left to
        the engine.
        """
        first = asked.pod_sets[0]
        return Supply(
            tuple(self._rooms_of(cluster, asked, first)),
            tuple(self._queue(priority).get(cluster, ())) + tuple(self._promised[cluster]),
            self._cpu_queue(priority).get(cluster, 0),
        )

    def refused(self, tenant: str, asked: PodsOfJob, *, non_preemptible: bool) -> Mapping[str, str]:
        """Return why quota allows the job no more of some GPU models now."""
        if self._book is None:
            self._book = quota_use.quota_book()
        return refused_by(self._book, tenant, asked, non_preemptible=non_preemptible)

    def endings(self, cluster: int) -> list[ReturnedGpus]:
        """Return when running jobs end, as far as they declare it."""
        if self._endings is None:
            rows = (
                Placement.objects.filter(
                    state__in=LIVE_PLACEMENTS,
                    job__cluster__in=self._clusters,
                    job__admitted_at__isnull=False,
                    held_milli__gt=0,
                )
                .exclude(job__declared_s=None, job__run_limit_s=None)
                .order_by()
                .values_list(
                    "job__cluster_id", "gpu_model", "job__admitted_at", "job__declared_s",
                    "job__run_limit_s",
                )
                .annotate(Sum("held_milli"))
            )  # fmt: skip
            self._endings = defaultdict(list)
            for cluster_id, model, began, declared, limit, milli in rows:
                at = _end(began, declared, limit)
                self._endings[cluster_id].append(ReturnedGpus(model, at, milli))
        return self._endings.get(cluster, [])

    # --- rows ---------------------------------------------------------------------------------
    def _rooms_of(self, cluster: int, asked: PodsOfJob, first: PodSetSpec) -> list[FreeNodes]:
        column = _COLUMN.get(asked.level, "")
        selector = tuple(sorted(first.nodes.node_selector.items()))
        key = column, selector
        if key not in self._rooms:
            self._rooms[key] = self._read_rooms(column, selector)
        return [
            FreeNodes(*room)
            for cluster_id, taints, *room in self._rooms[key]
            if cluster_id == cluster and not _kept_off(taints, first.nodes.tolerations)
        ]

    def _read_rooms(self, column: str, selector: tuple[tuple[str, str], ...]) -> list[Any]:
        rows = NodeRecord.objects.filter(cluster__in=self._clusters, schedulable=True).order_by()
        for number, (label, value) in enumerate(selector):
            name = f"label_{number}"
            rows = rows.alias(**{name: KeyTransform(label, "labels")}).filter(**{name: value})
        group = F(column) if column else F("gpu_model")
        return list(
            rows.annotate(network=group)
            .values_list("cluster_id", "taints", "gpu_model", "network", "free_gpus")
            .annotate(
                nodes=Count("id"),
                milli=MILLI * Sum("healthy_gpus") - Sum("allocated_milli"),
                cpu=Sum("cpu_milli", filter=Q(gpus=0), default=0)
                - Sum("allocated_cpu_milli", filter=Q(gpus=0), default=0),
            )
        )

    def _queue(self, priority: int) -> dict[int, list[Queued]]:
        if priority not in self._queued:
            rows = (
                self._waiting(priority)
                .filter(gpus__gt=0)
                .values_list("job__cluster_id", "gpu_models")
                .annotate(total=Sum(F("count") * F("gpus") * F("gpu_milli")))
            )
            found: dict[int, list[Queued]] = defaultdict(list)
            for cluster_id, models, amount in rows:
                found[cluster_id].append(Queued(tuple(models), amount))
            self._queued[priority] = found
        return self._queued[priority]

    def _cpu_queue(self, priority: int) -> dict[int, int]:
        if priority not in self._cpu_queued:
            rows = self._waiting(priority).filter(job__gpu_milli=0).values_list("job__cluster_id")
            self._cpu_queued[priority] = dict(rows.annotate(total=Sum(F("count") * F("cpu_milli"))))
        return self._cpu_queued[priority]

    def _waiting(self, priority: int) -> Any:
        return PodSet.objects.filter(
            job__cluster__in=self._clusters,
            job__state__in=list(WAITING),
            job__reason__in=[reason.value for reason in FOR_PLACES],
            job__priority__gte=priority,
            job__held=False,
        ).order_by()


def _end(began: datetime, declared: int | None, limit: int | None) -> float:
    spans = [seconds for seconds in (declared, limit) if seconds is not None]
    return began.timestamp() + min(spans)


def _kept_off(taints: list[dict[str, str]], tolerations: tuple[Toleration, ...]) -> bool:
    return blocking_taint((Taint(**taint) for taint in taints), tolerations) is not None
