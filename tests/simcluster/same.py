"""Send the same requests to the embedded cluster and to a real kube-apiserver and compare the
answers.

Compared are the status code; for a refusal its reason and the fields it names; for a success the
whole object. Exempt are random values (uid, time, resourceVersion), field ownership, and finalizers
that protect storage in use, which the embedded cluster does not have.
"""

import json
import re
import urllib.error
import urllib.request
from typing import Any

MERGE, STRATEGIC, JSON_PATCH, APPLY = (
    f"application/{kind}"
    for kind in (
        "merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml",
    )
)  # fmt: skip
PROTECTION = (["kubernetes.io/pvc-protection"], ["kubernetes.io/pv-protection"])


def ask(server: tuple[str, Any], method: str, path: str, body: Any, kind: str) -> tuple[int, Any]:
    url, trust = server
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer admin-token", "Content-Type": kind}
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, context=trust, timeout=20) as reply:
            code, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        code, text = error.code, error.read().decode()
    try:
        return code, json.loads(text)
    except ValueError:
        return code, text


def comparable(answer: tuple[int, Any]) -> Any:
    code, body = answer
    if not isinstance(body, dict):
        return code
    if code >= 400:
        causes = (body.get("details") or {}).get("causes") or ()
        return code, body.get("reason"), sorted({(c["reason"], c.get("field")) for c in causes})
    text = json.dumps(body)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME", text)
    text = re.sub(r'"resourceVersion": "\d+"', '"resourceVersion": "RV"', text)
    return code, without_owners(json.loads(text))


def without_owners(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_owners(v) for k, v in value.items() if not _is_kept_by_one(k, v)}
    if isinstance(value, list):
        return [without_owners(v) for v in value]
    return value


def _is_kept_by_one(field: str, value: Any) -> bool:
    return field == "managedFields" or (field == "finalizers" and value in PROTECTION)


def check(servers, *requests) -> None:
    """Send all requests in order to both; each is (method, path[, body[, content type]])."""
    real, sim = servers
    for method, path, *rest in requests:
        body = rest[0] if rest else None
        kind = rest[1] if len(rest) > 1 else "application/json"
        expected = comparable(ask(real, method, path, body, kind))
        assert comparable(ask(sim, method, path, body, kind)) == expected, (method, path, body)
