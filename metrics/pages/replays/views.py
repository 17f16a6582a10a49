"""The pages of replays, for operators."""

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from metrics.models import Replay, ReplayState
from metrics.pages.operations.views import figure_answer, operator_required
from metrics.pages.replays import tables
from metrics.pages.replays.charts import FIGURES
from metrics.pages.replays.forms import ReplayForm, initial_like, initial_of, kept_of
from metrics.pages.replays.quota_form import QuotaGrid
from metrics.replays import services
from metrics.replays.recorded import CLOSE, FAR, ROUGH, UNKNOWN
from metrics.replays.scenario import differences, shapes_of
from scheduling.models import Cluster
from scheduling.policy.document import effective
from scheduling.queries.wording import policy_differences
from scheduling.services.policies.changes import policy_of
from tenants.errors import DomainError, NotFound
from tenants.names import but
from tenants.web.conditional import by_its_text
from tenants.web.pages import actor_of, live_or_whole

PER_PAGE = 25
UNKNOWN_SHARE = 0.05  # of GPU-hours; the page warns above it
TONES = {
    ReplayState.QUEUED: "wait",
    ReplayState.RUNNING: "busy",
    ReplayState.DONE: "good",
    ReplayState.FAILED: "bad",
    ReplayState.CANCELLED: "",
}
WORDS = {
    ReplayState.QUEUED: "Waiting",
    ReplayState.RUNNING: "Running",
    ReplayState.DONE: "Done",
    ReplayState.FAILED: "Failed",
    ReplayState.CANCELLED: "Cancelled",
}
# How far the numbers can be trusted: (tone, finding, consequence).
TRUST = {
    CLOSE: (
        "good",
        "The simulated baseline comes close to what was recorded.",
        "Differences between the two runs are likely to hold.",
    ),
    ROUGH: (
        "wait",
        "The simulated baseline is some way from what was recorded.",
        "Trust large differences between the two runs only.",
    ),
    FAR: (
        "bad",
        "The simulated baseline is far from what was recorded.",
        "Do not rely on the numbers below until you know why.",
    ),
    UNKNOWN: (
        "wait",
        "Too little was recorded to say how close the simulated baseline is.",
        "Trust large differences between the two runs only.",
    ),
}
RUNS = ("baseline", "changed")
CHARTS = (
    ("allocation", "GPUs allocated and fragmentation over time", "c7"),
    ("waits", "Waits: share of jobs started within a time", "c5"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A replay and a description of its changes: (what, before, after). `waits`: the mean waits of
    both runs, once it is done."""

    replay: Replay
    changes: list[tuple[str, str, str]]
    waits: tables.Pair | None = None

    @property
    def state(self) -> str:
        return WORDS[ReplayState(self.replay.state)]

    @property
    def tone(self) -> str:
        return TONES[ReplayState(self.replay.state)]

    @property
    def percent(self) -> int:
        return int(100 * self.replay.progress)

    @property
    def is_open(self) -> bool:
        return self.replay.state in services.OPEN


def shown(replay: Replay) -> Shown:
    return Shown(replay, list(differences(replay)))


def waits_of(replay: Any) -> tables.Pair | None:
    """Return the waits of a replay in the list, which has loaded only these from its result."""
    waits = [getattr(replay, run) for run in RUNS]
    return tables.mean_waits(*waits) if all(waits) else None


def replay_or_404(replay_id: uuid.UUID) -> Replay:
    try:
        return services.replay_by_id(replay_id)
    except NotFound as error:
        raise Http404(error.detail) from None


@operator_required
@require_safe
def replays(request: HttpRequest) -> HttpResponse:
    rows = services.replays().annotate(**{run: F(f"result__{run}__jwtd") for run in RUNS})
    page = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "nav": "replays",
        "page": page,
        "rows": [Shown(one, list(differences(one)), waits_of(one)) for one in page],
        "clusters": Cluster.objects.exists(),
        "takes": ("page",),
    }
    answer = render(request, live_or_whole(request, "metrics/replays/replays.html"), context)
    return by_its_text(request, answer)


@operator_required
@require_http_methods(["GET", "HEAD", "POST"])
def replay_new(request: HttpRequest) -> HttpResponse:
    """Show and process the form; `?cluster=` selects a cluster, `?like=` copies an earlier
    replay."""
    clusters = list(Cluster.objects.all())
    if not clusters:
        return redirect("replays")
    like = _like(request)
    wanted = request.GET.get("cluster", "") or request.POST.get("cluster", "")
    names = {cluster.name: cluster for cluster in clusters}
    if wanted and wanted not in names:
        raise Http404(f"There is no cluster “{wanted}”{but(wanted, names)}.")
    cluster = names.get(wanted) or (like.cluster if like else clusters[0])
    shapes = shapes_of(cluster)
    grid = QuotaGrid({shape.gpu_type for shape in shapes})
    try:
        policy = effective(policy_of(cluster).document)
    except (TypeError, ValueError):
        raise Http404(
            "A newer version of Kant has set its policy; this version cannot read it."
        ) from None
    initial = initial_of(policy, grid, timezone.now())
    kept: dict[str, Any] = {}
    if like is not None and like.cluster_id == cluster.pk:
        initial |= initial_like(like, shapes, grid)
        kept = kept_of(like)
    status = 200
    if request.method == "POST":
        form = ReplayForm(shapes, grid, request.POST, initial=initial)
        if form.is_valid():
            try:
                asked = form.asked()
                asked["policy"] |= kept
                made = services.create_replay(actor_of(request), cluster, **asked)
            except DomainError as error:
                form.show(error)
            else:
                return redirect("replay", made.pk)
        form.mark_errors()
        status = 422
    else:
        form = ReplayForm(shapes, grid, initial=initial)
    context = {
        "nav": "replays",
        "form": form,
        "cluster": cluster,
        "clusters": clusters,
        "most_days": services.MOST.days,
        "like": like,
        "kept": policy_differences(policy, policy | kept),
        "takes": ("cluster", "like"),
    }
    return render(request, "metrics/replays/replay_new.html", context, status=status)


def _like(request: HttpRequest) -> Replay | None:
    text = request.GET.get("like", "") or request.POST.get("like", "")
    if not text:
        return None
    try:
        return replay_or_404(uuid.UUID(text))
    except ValueError:
        raise Http404(f"There is no replay “{text}”.") from None


@operator_required
@require_safe
def replay(request: HttpRequest, replay_id: uuid.UUID) -> HttpResponse:
    found = shown(replay_or_404(replay_id))
    if request.htmx and not found.is_open:  # type: ignore[attr-defined]
        # It was still open when the page was loaded; the page of a finished replay looks different.
        return HttpResponse(headers={"HX-Refresh": "true"})
    context: dict[str, Any] = {
        "nav": "replays",
        "shown": found,
        "replay": found.replay,
        "sets_policy": found.replay.policy != found.replay.policy_before,
    }
    if found.replay.state == ReplayState.QUEUED:
        earlier = Replay.objects.filter(state__in=services.OPEN)
        context["ahead"] = earlier.filter(created_at__lt=found.replay.created_at).count()
    if found.replay.result is not None:
        context |= _result(found.replay.result)
    answer = render(request, live_or_whole(request, "metrics/replays/replay.html"), context)
    return by_its_text(request, answer)


def _result(result: dict[str, Any]) -> dict[str, Any]:
    lines, share = tables.totals(result), tables.unknown_share(result)
    return {
        "result": result,
        "history": result["history"],
        "trust": result["trust"],
        "hours": [
            tables.hours(result["trust"][f"gpu_hours_{run}"]) for run in ("recorded", "simulated")
        ],
        "trusted": TRUST[result["trust"]["grade"]],
        "charts": CHARTS,
        "unknown_share": share if share > UNKNOWN_SHARE else None,
        "more_tenants": len(result["baseline"]["tenants"]) - tables.MOST_TENANTS,
        "headline": [lines[i] for i in (0, 1, 2, 3, 7)],
        "totals": lines,
        "starts": result["starts"],
        "sizes": tables.waits_by_size(result),
        "tenants": tables.waits_by_tenant(result),
        "quality": tables.quality(result),
        "pools": tables.pools(result),
    }


@operator_required
@require_safe
def chart(request: HttpRequest, replay_id: uuid.UUID, name: str) -> HttpResponse:
    found = replay_or_404(replay_id)
    if name not in FIGURES or found.result is None:
        raise Http404(f"There is no chart “{name}” of this replay.")
    return figure_answer(request, FIGURES[name](found.result))


@require_POST
@operator_required
def replay_cancel(request: HttpRequest, replay_id: uuid.UUID) -> HttpResponse:
    try:
        services.cancel_replay(actor_of(request), replay_or_404(replay_id))
    except DomainError as error:
        messages.error(request, error.detail, extra_tags="bad")
    else:
        messages.success(request, "The replay is cancelled.", extra_tags="good")
    return redirect("replay", replay_id)
