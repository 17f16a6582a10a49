"""The pages that change a cluster's policy: the form, the effect of the change, the save."""

import uuid
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from metrics.models import Replay, ReplayState
from metrics.pages.operations.views import operator_required
from metrics.pages.policies.drafts import (
    Damaged,
    Draft,
    draft_like,
    draft_of_now,
    foreign,
    sent_draft,
)
from metrics.pages.policies.effects import effects
from metrics.pages.policies.forms import PolicyForm, ReasonForm, typed
from metrics.pages.policies.standing import standing_of
from metrics.pages.replays import tables
from metrics.pages.replays.views import TRUST, Shown, replay_or_404, shown
from metrics.replays import services
from metrics.replays.scenario import UNSEEN
from scheduling.models import Cluster, ClusterPolicy, NodeRecord
from scheduling.pages.refusals import refusal, refusal_of_form, rehearsed_reason
from scheduling.policy.document import effective, to_policy
from scheduling.policy.settings import field_of, settings_of, without_effect
from scheduling.queries.wording import Difference, policy_differences
from scheduling.services.policies.changes import changes_of, previewed
from tenants.errors import DomainError, FieldError, Invalid, NotFound, Stale
from tenants.models import GpuType
from tenants.web.pages import actor_of

NOTHING = "Nothing was changed."
SAVED_AS_IT_WAS = (
    "Somebody saved this policy without a change in the meantime; your changes are not saved. "
    "Save again."
)
MEANWHILE = "This policy was changed in the meantime."
IS_SO = "The policy already has these values."
REASONS = "reasons-of-replays"  # session key: the reason typed for each of the newest replays
MOST_REASONS = 5
LOOKED_AT = 20  # newest replays of the cluster searched for one of exactly this change

View = Callable[..., HttpResponse]


def of_cluster(view: View) -> View:
    """Pass the cluster in the address to a view for operators. If the request is damaged, show the
    form with the current policy instead."""

    @operator_required
    @wraps(view)
    def found(request: HttpRequest, name: str, **kwargs: Any) -> HttpResponse:
        cluster = Cluster.objects.filter(name=name).first()
        if cluster is None:
            raise Http404(f"There is no cluster “{name}”.")
        try:
            return view(request, cluster, **kwargs)
        except Damaged as error:
            return damaged(request, cluster, error)
        except NotFound as error:
            raise Http404(error.detail) from None

    return found


# --- the form -------------------------------------------------------------------------------------
@of_cluster
@require_http_methods(["GET", "HEAD", "POST"])
def policy(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """Show the form with the current policy, or (POST) with a change sent back from its page."""
    if request.method != "POST":
        return form_page(request, draft_of_now(cluster))
    draft = sent_draft(cluster, request.POST)
    return form_page(request, draft, form_of(draft, typed_into=True))


@of_cluster
@require_POST
def policy_draft(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """Return the fields as typed after a rehearsal of the change; nothing is changed."""
    try:
        draft = sent_draft(cluster, request.POST)
    except Damaged as error:
        return HttpResponse(error.detail, status=400, content_type="text/plain")
    form = form_of(draft, request.POST)
    _, theirs = rehearsed(request, draft, form)
    return render(
        request, "metrics/policies/_policy_fields.html", form_context(draft, form, theirs)
    )


def form_of(draft: Draft, data: Any = None, *, typed_into: bool = False) -> PolicyForm:
    """Return a draft's form with the sent input, or with the draft's changes typed in."""
    models = NodeRecord.objects.filter(cluster=draft.cluster).values_list("gpu_model", flat=True)
    names = GpuType.objects.filter(name__in=models.order_by().distinct())
    types = {*names.values_list("name", flat=True)} | draft.policy.get("spare_nodes", {}).keys()
    if typed_into:
        settings = settings_of(draft.shown) | draft.changes
        data = typed(PolicyForm(draft.shown, types), settings)
    return PolicyForm(draft.shown, types, data)


def rehearsed(
    request: HttpRequest, draft: Draft, form: PolicyForm
) -> tuple[Draft | None, list[Difference]]:
    """Rehearse the form's changes against the current policy.

    Returns the draft and what others have changed in between. The draft is None, with the reasons
    in the form, if it cannot be saved.
    """
    if not form.is_valid():
        return None, draft.rebased()[1]
    sent = Draft(draft.cluster, draft.shown, draft.version, form.changes())
    found, theirs = sent.rebased()
    if not found.changes:
        return found, theirs
    try:
        found.save(actor_of(request), dry_run=True)
    except DomainError as error:
        form.show(error)
        return None, theirs
    return found, theirs


def form_context(draft: Draft, form: PolicyForm, theirs: list[Difference]) -> dict[str, Any]:
    groups = form.groups()
    form.mark_errors()
    return {
        "nav": "operations",
        "cluster": draft.cluster,
        "hidden": {name: draft.hidden()[name] for name in ("shown", "version")},
        "form": form,
        "groups": groups,
        "edited": sum(bool(item.was) for group in groups for item in group.items),
        "theirs": foreign(draft.cluster, theirs),
    }


def form_page(
    request: HttpRequest,
    draft: Draft,
    form: PolicyForm | None = None,
    theirs: list[Difference] | None = None,
    *,
    status: int = 200,
) -> HttpResponse:
    context = form_context(draft, form or form_of(draft), theirs or [])
    context["newest"] = changes_of(draft.cluster).first()
    context["standing"] = standing_of(draft.cluster)
    context["reason"] = request.POST.get("reason", "")
    if form and (wrong := next((key for key in form.fields if key in form.errors), None)):
        form.focus(wrong)
    return render(request, "metrics/policies/policy.html", context, status=status)


def damaged(request: HttpRequest, cluster: Cluster, error: Damaged) -> HttpResponse:
    draft = draft_of_now(cluster)
    form = form_of(draft)
    form.warn(None, error.detail)
    return form_page(request, draft, form, status=422)


# --- what it would mean ---------------------------------------------------------------------------
@of_cluster
@require_http_methods(["GET", "HEAD", "POST"])
def policy_check(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """Show the change from the form, or from the replay that `?replay=` names, before it is
    saved."""
    if request.method != "POST":
        return check_of_replay(request, cluster)
    draft = sent_draft(cluster, request.POST)
    form = form_of(draft, request.POST)
    found, theirs = rehearsed(request, draft, form)
    if found is None:
        return form_page(request, draft, form, theirs, status=422)
    if not found.changes:
        form.add_error(None, NOTHING)
        return form_page(request, draft, form, theirs, status=422)
    return check_page(request, found, theirs)


def check_of_replay(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    text = request.GET.get("replay", "")
    if not text:
        return redirect("policy", cluster.name)
    try:
        replay = replay_or_404(uuid.UUID(text))
    except ValueError:
        raise Http404(f"There is no replay “{text}”.") from None
    if replay.cluster_id != cluster.pk:
        raise Http404(f"That replay belongs to cluster “{replay.cluster.name}”.")
    draft, since = draft_like(replay)
    if not draft.changes:
        messages.info(
            request, "The policy already has the values that this replay tried.", extra_tags="info"
        )
        return redirect("policy", cluster.name)
    try:
        draft.save(actor_of(request), dry_run=True)
    except DomainError as error:
        return refused(request, draft, error)
    typed_before = request.session.get(REASONS, {}).get(str(replay.pk), "")
    reason = ReasonForm(initial={"reason": typed_before})
    return check_page(
        request, draft, since, takes=("replay",), of_replay=shown(replay), reason=reason
    )


def check_page(
    request: HttpRequest,
    draft: Draft,
    theirs: list[Difference],
    *,
    errors: tuple[str, ...] = (),
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    """Render the page of a change that can be saved as it is."""
    before, after = effective(draft.shown), effective(draft.policy)
    changed, idle = policy_differences(before, after), without_effect(settings_of(after))
    others = foreign(draft.cluster, theirs)
    meanwhile = {one.difference.key: one for one in others}
    same, result = replay_of(draft, before, after)
    context = {
        "nav": "operations",
        "cluster": draft.cluster,
        "hidden": draft.hidden(),
        "lines": [(one, idle.get(one.key), meanwhile.get(one.key)) for one in changed],
        "effects": list(
            effects(
                draft.cluster, to_policy(before), to_policy(after), {one.key for one in changed}
            )
        ),
        "unseen": [one.name for one in changed if field_of(one.key) in UNSEEN],
        "same": same,
        "result": result,
        "days": services.USUAL.days,
        "reason": ReasonForm(request.POST if "reason" in request.POST else None),
        "errors": errors,
        "theirs": others,
        **more,
    }
    return render(request, "metrics/policies/policy_check.html", context, status=status)


def replay_of(
    draft: Draft, before: dict[str, Any], after: dict[str, Any]
) -> tuple[Shown | None, dict[str, Any]]:
    """Return the newest replay of exactly this change, and its result."""
    newest = Replay.objects.filter(cluster=draft.cluster).exclude(state=ReplayState.CANCELLED)
    for replay in newest.select_related("cluster", "user").defer("result")[:LOOKED_AT]:
        compared = (replay.policy_before, replay.policy) == (before, after)
        if compared and not (replay.nodes or replay.quotas):
            return shown(replay), _found(replay)
    return None, {}


def _found(replay: Replay) -> dict[str, Any]:
    if replay.result is None:
        return {}
    lines = tables.totals(replay.result)
    return {
        "trusted": TRUST[replay.result["trust"]["grade"]],
        "doubts": replay.result["trust"]["doubts"],
        "totals": [lines[i] for i in (0, 1, 2, 3, 5, 6, 7)],
        "starts": replay.result["starts"],
    }


@of_cluster
@require_POST
def policy_replay(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """Start a replay of the last days with exactly the policy that would be saved. The typed reason
    is kept for the way back."""
    draft, theirs = sent_draft(cluster, request.POST).rebased()
    reason = ReasonForm(request.POST)
    if not reason.is_valid():
        return check_page(request, draft, theirs, status=422)
    try:
        replay = services.create_replay(actor_of(request), cluster, policy=draft.policy)
    except DomainError as error:
        if wrong := [fault for fault in error.errors if fault.path[0] == "policy"]:
            inside = [FieldError(fault.path[1:], fault.detail) for fault in wrong]
            return refused(request, draft, Invalid.fields(inside))
        return check_page(request, draft, theirs, errors=tuple(error.details), status=422)
    known = list(request.session.get(REASONS, {}).items())[-(MOST_REASONS - 1) :]
    request.session[REASONS] = {**dict(known), str(replay.pk): reason.cleaned_data["reason"]}
    return redirect("replay", replay.pk)


@of_cluster
@require_POST
def policy_preview(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    """Preview what saving the change does to jobs from now on; nothing is changed."""
    try:
        draft = sent_draft(cluster, request.POST)
    except Damaged as error:
        return refusal(request, error.detail)
    reason = ReasonForm({"reason": rehearsed_reason(request)})
    if not reason.is_valid():
        return refusal_of_form(request, reason)
    try:
        then = saved(request, draft, reason, dry_run=True)
    except Stale:
        return refusal(request, *meanwhile(draft))
    except DomainError as error:
        return refusal_of_form(request, form_refused(draft, error))
    found = previewed(actor_of(request), cluster, effective(then.document))
    context = {"title": "What it would do from now on", "effects": found}
    return render(request, "parts/effects.html", context)


def meanwhile(draft: Draft) -> Iterator[str]:
    """Yield why a draft cannot simply be saved after somebody else's change: who has set what."""
    found, theirs = draft.rebased()
    if not found.changes:
        yield IS_SO
        return
    yield MEANWHILE if theirs else SAVED_AS_IT_WAS
    for one in foreign(draft.cluster, theirs):
        by = f", by {one.record.actor_name}" if one.record else ""
        yield f"{one.difference.name}: {one.difference.before} to {one.difference.after}{by}"


# --- saving ---------------------------------------------------------------------------------------
@of_cluster
@require_POST
def policy_save(request: HttpRequest, cluster: Cluster) -> HttpResponse:
    draft = sent_draft(cluster, request.POST)
    reason = ReasonForm(request.POST)
    if draft.changes and not reason.is_valid():
        return check_page(request, draft, [], status=422)
    try:
        now = saved(request, draft, reason)
    except Stale:
        found, theirs = draft.rebased()
        if not found.changes:
            messages.info(request, IS_SO, extra_tags="info")
            return redirect("policy-changes", cluster.name)
        try:
            found.save(actor_of(request), dry_run=True)
        except DomainError as error:  # it conflicts with what somebody else has set
            return refused(request, found, error)
        errors = () if theirs else (SAVED_AS_IT_WAS,)
        return check_page(request, found, theirs, errors=errors, stale=True, status=422)
    except DomainError as error:
        return refused(request, draft, error)
    text = f"The policy of {cluster.title or cluster.name} is changed; it is version"
    messages.success(request, f"{text} {now.version} now.", extra_tags="good")
    return redirect("policy-changes", cluster.name)


def saved(
    request: HttpRequest, draft: Draft, reason: ReasonForm, *, dry_run: bool = False
) -> ClusterPolicy:
    """Save what the form of a change sends, or rehearse that. Raises as `Draft.save`, and Invalid
    without changes."""
    if not draft.changes:
        raise Invalid(NOTHING)
    return draft.save(actor_of(request), reason=reason.cleaned_data["reason"], dry_run=dry_run)


def refused(request: HttpRequest, draft: Draft, error: DomainError) -> HttpResponse:
    """Show the form with the changes of a draft that can no longer be saved, and why."""
    form = form_refused(draft, error)
    return form_page(request, draft, form, draft.rebased()[1], status=422)


def form_refused(draft: Draft, error: DomainError) -> PolicyForm:
    form = form_of(draft, typed_into=True)
    form.is_valid()
    form.show(error)
    return form
