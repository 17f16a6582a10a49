"""What is said of an event: a document for programs, a sentence for Slack."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.urls import reverse

from webhooks.models import TEST, HookEvent, HookFormat, Webhook


@dataclass(frozen=True, slots=True)
class HookMessage:
    """One event, before it is told to anybody. `key` names it among all. `data`: of its document;
    `tenant_id`: whose it is, None = of the whole deployment. `page`: a path of this site about it,
    "" = there is none."""

    key: str
    event: str
    at: datetime
    subject: str
    data: Mapping[str, Any]
    tenant_id: int | None
    page: str = ""


def body_of(message: HookMessage, hook: Webhook) -> str:
    """What is sent to a webhook."""
    link = settings.KANT_PUBLIC_URL.rstrip("/") + message.page if _has_link(message) else ""
    if hook.format == HookFormat.SLACK:
        return _written({"text": _sentence(message, link)})
    data = {**message.data, "url": link} if link else message.data
    return _written({"type": message.event, "timestamp": _iso(message.at), "data": data})


def test_message(hook: Webhook, key: str, now: datetime) -> HookMessage:
    """What a webhook is sent to see whether it is taken."""
    of = hook.tenant.name if hook.tenant else None
    data = {"webhook": str(hook.pk), "name": hook.name, "tenant": of}
    return HookMessage(key, TEST, now, "", data, hook.tenant_id, reverse("webhook", args=[hook.pk]))


def _has_link(message: HookMessage) -> bool:
    return bool(settings.KANT_PUBLIC_URL and message.page)


def _written(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# --- Slack ----------------------------------------------------------------------------------------
def _sentence(message: HookMessage, link: str) -> str:
    told = _TOLD[message.event](message.data)
    return f"{told} <{link}|Open in Kant>" if link else told


def _job(data: Mapping[str, Any], what: str, more: str = "") -> str:
    size = f"{data['gpus']:g} GPU{'' if data['gpus'] == 1 else 's'}"
    kinds = f" of {_plain(', '.join(data['gpu_types']))}" if data["gpu_types"] else ""
    user = f", {_plain(data['user'])}" if data["user"] else ""
    return (
        f"Job *{_plain(data['name'])}* of {_plain(data['tenant'])} {what} "
        f"({size}{kinds} on {_plain(data['cluster'])}{user}).{more}"
    )


def _why(data: Mapping[str, Any]) -> str:
    text = data["message"] or data["reason"]
    return f" {_plain(text)}" if text else ""


def _ran(data: Mapping[str, Any]) -> str:
    return "" if data["ran_s"] is None else f" after {_time(data['ran_s'])}"


def _quota(data: Mapping[str, Any]) -> str:
    def gpus(document: Mapping[str, Any] | None) -> str:
        return "none" if document is None else f"{document['guaranteed']:g} GPUs"

    why = f" “{_plain(data['reason'])}”" if data["reason"] else ""
    return (
        f"Quota of {_plain(data['tenant'] or 'a tenant')} for {_plain(data['gpu_type'])}: "
        f"{gpus(data['before'])} → {gpus(data['after'])}, by {_plain(data['actor'])}.{why}"
    )


def _plain(text: str) -> str:
    """Slack's three characters of control, escaped as it asks for."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


_TOLD = {
    HookEvent.STARTED: lambda data: _job(data, f"started after {_time(data['waited_s'])}"),
    HookEvent.PENDING_LONG: lambda data: _job(
        data, f"has waited for {_time(data['waited_s'])}", _why(data)
    ),
    HookEvent.PREEMPTED: lambda data: _job(data, "was preempted", _why(data)),
    HookEvent.SUCCEEDED: lambda data: _job(data, f"succeeded{_ran(data)}"),
    HookEvent.FAILED: lambda data: _job(data, f"failed{_ran(data)}", _why(data)),
    HookEvent.CANCELLED: lambda data: _job(data, f"was cancelled{_ran(data)}", _why(data)),
    HookEvent.QUOTA: _quota,
    HookEvent.GFR: lambda data: (
        f"Fragmentation of {_plain(data['cluster'])} is high: GFR {data['gfr_percent']:g} %, told "
        f"from {data['threshold_percent']:g} % on."
    ),
    TEST: lambda data: f"Test of the webhook *{_plain(data['name'])}* of Kant: it works.",
}
