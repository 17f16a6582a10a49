"""A token never allows more than its user, its scopes, its tenant or the token that created it,
and never for longer."""

from datetime import timedelta

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from tenants.models import ApiToken, AuditRecord, Scope
from tenants.services import tokens
from tenants.services.tokens import create_token

URL = "/api/v1/tokens"
ID = "00000000-0000-0000-0000-000000000000"
READ, SUBMIT, QUOTA, OPERATE = Scope.values
# The scope that each write needs; "" = none.
WRITES = {
    "jobs": SUBMIT, "jobs:act": SUBMIT, "jobs:batch": SUBMIT, "job-arrays": SUBMIT, "quotas": QUOTA,
    "quotas:preview": QUOTA, "quota-drafts": QUOTA, "quota-orders": QUOTA, "audit": QUOTA,
    "tenants": OPERATE, "gpu-types": OPERATE, "clusters": OPERATE, "queues": OPERATE,
    "replays": OPERATE, "organisation": OPERATE, "webhooks": OPERATE, "tokens": "",
    "templates": OPERATE,
}  # fmt: skip
OPEN_TO_ALL = ("me", "tokens", "problems", "openapi.json", "docs")


def bearer(secret):
    return APIClient(HTTP_AUTHORIZATION=f"Bearer {secret}", headers={"Accept": "application/json"})


def client(org, who, **limits):
    return bearer(create_token(org.users[who], "test", **limits).secret)


def operations():
    """Return (method, path) of all operations of REST."""

    def patterns(found, prefix=""):
        for each in found:
            if isinstance(each, URLResolver):
                yield from patterns(each.url_patterns, prefix + str(each.pattern))
            elif isinstance(each, URLPattern):
                yield prefix + str(each.pattern), each.callback

    for path, view in patterns(get_resolver("kant.api_urls").url_patterns):
        if not path:  # the error for missing things
            continue
        shapes = getattr(getattr(view, "view_class", None), "shapes", None) or {"GET": None}
        for method in shapes:
            yield method, path


FILLED = {
    "<str:name>": "vision", "<str:username>": "eve", "<str:tenant>": "vision",
    "<str:gpu_type>": "H100", "<uuid:job_id>": ID, "<uuid:array_id>": ID, "<uuid:record_id>": ID,
    "<uuid:order_id>": ID, "<uuid:webhook_id>": ID, "<uuid:delivery_id>": ID,
    "<uuid:template_id>": ID,
    "<uuid:replay_id>": ID, "<int:token_id>": "999999", "<str:code>": "gone", "<str:node>": "h000",
    "^docs/?$": "docs",
}  # fmt: skip
OPERATIONS = sorted(set(operations()))


def filled(path):
    for hole, value in FILLED.items():
        path = path.replace(hole, value)
    if path.startswith("clusters/"):
        path = path.replace("vision", "demo")
    return path


def refused_for_scope(answer):
    return answer.status_code == 403 and "this request needs" in answer.content.decode()


def test_all_operations_are_looked_at():
    assert len(OPERATIONS) >= 59
    assert {filled(path).split("/")[0] for _, path in OPERATIONS} >= WRITES.keys()
    assert not [path for _, path in OPERATIONS if "<" in filled(path)]


@pytest.mark.parametrize("held", [*((s,) for s in Scope.values), (READ, SUBMIT), None])
def test_each_operation_needs_its_scope(org, held):
    ops = client(org, "ops", scopes=held)
    for method, path in OPERATIONS:
        url = filled(path)
        part = url.split("/")[0]
        wanted = WRITES[part] if method != "GET" else "" if part in OPEN_TO_ALL else READ
        answer = ops.generic(
            method,
            f"/api/v1/{url}{'?dry_run=true' if method != 'GET' else ''}",
            "{}" if method != "GET" else "",
            content_type="application/json",
        )
        good = held is None or not wanted or wanted in held
        assert refused_for_scope(answer) is not good, (method, url, answer.status_code)
        if not good:
            assert f"“{wanted}”" in answer.json()["detail"]
        assert answer.status_code < 500, (method, url)
    assert not AuditRecord.objects.exists()


def test_metrics_are_read_with_the_scope(org, settings):
    settings.KANT_METRICS_OPEN = False
    assert client(org, "ops", scopes=[READ]).get("/metrics").status_code == 200
    assert client(org, "ops", scopes=[OPERATE]).get("/metrics").status_code == 403


@pytest.mark.parametrize("who", ["ops", "root", "ada", "eve", "vic"])
def test_scopes_and_a_tenant_only_take_rights_away(org, who):
    """An unlimited token may do all that a limited one may; outside its tenant a limited one may
    do nothing."""
    whole, limited = client(org, who), client(org, who, tenant="vision-lab", scopes=Scope.values)
    job = {"name": "x", "gpus": 1, "gpu_type": "H100"}
    quota = {"guaranteed": 1, "reason": "x"}
    none = {"If-None-Match": "*"}
    allowed = {}
    for tenant in ("ml", "vision", "vision-lab", "law"):
        tries = {
            "see": ("get", f"tenants/{tenant}", None),
            "submit": ("post", "jobs", {**job, "tenant": tenant}),
            "quota": ("put", f"quotas/{tenant}/H100", quota),
            "title": ("patch", f"tenants/{tenant}", {"title": "y"}),
            "weight": ("patch", f"tenants/{tenant}", {"weight": 2.0}),
            "member": ("put", f"tenants/{tenant}/members/vic", {"role": "viewer"}),
            "child": ("post", "tenants", {"name": "new", "parent": tenant}),
        }
        for name, (method, path, body) in tries.items():
            found = []
            for asks in (whole, limited):
                url = f"/api/v1/{path}" + ("" if method == "get" else "?dry_run=true")
                answer = getattr(asks, method)(
                    url, body, **({} if method == "get" else {"format": "json"}), headers=none
                )
                assert answer.status_code < 500
                found.append(answer.status_code < 300)
            may, does = found
            assert may or not does, (tenant, name)
            assert tenant == "vision-lab" or not does, (tenant, name)
            if tenant == "vision-lab" and name != "child":
                allowed[name] = (may, does)
    assert all(
        may == does for name, (may, does) in allowed.items() if name not in ("weight", "member")
    ), allowed
    for method, path, body in (
        ("post", "tenants", {"name": "root2"}),
        ("patch", "clusters/demo", {"title": "y"}),
        ("post", "gpu-types", {"name": "X"}),
        ("put", "clusters/demo/policy", {"policy": {}}),
    ):
        answer = getattr(limited, method)(
            f"/api/v1/{path}?dry_run=true", body, format="json", headers={"If-Match": '"0"'}
        )
        assert answer.status_code in (403, 404, 422), (path, answer.content)
        assert answer.status_code != 200
    names = {t["name"] for t in limited.get("/api/v1/tenants").json()["items"]}
    assert names <= {"vision-lab"}
    assert limited.get("/api/v1/metrics").status_code == 403


def test_a_token_made_by_a_token_never_exceeds_it(org, now):
    ends = now + timedelta(days=1)
    parent = client(org, "ops", scopes=[READ, SUBMIT], tenant="vision", expires_at=ends)
    made = parent.post(URL, {"name": "child"}, format="json").json()
    assert (made["scopes"], made["tenant"]) == ([READ, SUBMIT], "vision")
    assert made["expires_at"] == ends.isoformat().replace("+00:00", "Z")
    less = {"name": "less", "scopes": [READ], "tenant": "vision-lab"}
    made = parent.post(URL, less, format="json").json()
    assert (made["scopes"], made["tenant"]) == ([READ], "vision-lab")
    for body, pointer in (
        ({"scopes": [READ, QUOTA]}, "/scopes"),
        ({"scopes": list(Scope.values)}, "/scopes"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["admin"]}, "/scopes/0"),
        ({"scopes": "read"}, "/scopes"),
        ({"tenant": "ml"}, "/tenant"),
        ({"tenant": "law"}, "/tenant"),
        ({"tenant": "none-such"}, "/tenant"),
        ({"expires_at": (ends + timedelta(seconds=1)).isoformat()}, "/expires_at"),
    ):
        answer = parent.post(URL, {"name": "more", **body}, format="json")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), body
    child = bearer(made["secret"])
    grandchild = child.post(URL, {"name": "g"}, format="json").json()
    assert (grandchild["scopes"], grandchild["tenant"]) == ([READ], "vision-lab")
    assert grandchild["made_by"] == made["id"]
    assert bearer(grandchild["secret"]).get("/api/v1/me").json()["token"]["id"] == grandchild["id"]


def test_it_ends_with_its_parent(org):
    first = create_token(org.users["eve"], "first")
    chain = [first.secret]
    for name in ("second", "third"):
        made = bearer(chain[-1]).post(URL, {"name": name}, format="json")
        chain.append(made.json()["secret"])
    other = org.client("eve")
    assert bearer(chain[2]).delete(f"{URL}/{first.token.pk}").status_code == 204
    assert [bearer(s).get("/api/v1/me").status_code for s in chain] == [401] * 3
    assert other.get("/api/v1/me").status_code == 200


def test_a_limited_token_sees_and_revokes_its_own_kind_only(org):
    org.client("eve")
    secret = create_token(org.users["eve"], "limited", scopes=[READ]).secret
    limited = bearer(secret)
    limited.post(URL, {"name": "child"}, format="json")
    assert [t["name"] for t in limited.get(URL).json()["items"]] == ["child", "limited"]
    whole = ApiToken.objects.get(name="test")
    assert limited.delete(f"{URL}/{whole.pk}").status_code == 404
    operator = client(org, "ops", scopes=[OPERATE])
    assert operator.delete(f"{URL}/{whole.pk}").status_code == 404
    assert org.client("ops").delete(f"{URL}/{whole.pk}").status_code == 204


def test_there_are_no_more_than_so_many(org, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_TOKENS", 3)
    eve = org.client("eve")
    made = [eve.post(URL, {"name": "n"}, format="json").json() for _ in range(2)]
    refused = eve.post(URL, {"name": "n"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "Revoke one" in refused.json()["detail"]
    assert org.client("joe").post(URL, {"name": "n"}, format="json").status_code == 201
    eve.delete(f"{URL}/{made[0]['id']}")
    assert eve.post(URL, {"name": "n"}, format="json").status_code == 201
    ApiToken.objects.filter(pk=made[1]["id"]).update(expires_at=timezone.now())
    assert eve.post(URL, {"name": "n"}, format="json").status_code == 201


def test_a_token_without_scopes_is_as_before(org):
    eve = org.client("eve")
    me = eve.get("/api/v1/me").json()["token"]
    assert (me["scopes"], me["tenant"], me["made_by"]) == (Scope.values, None, None)
    made = eve.post(URL, {"name": "as ever"}, format="json").json()
    assert (made["scopes"], made["expires_at"]) == (Scope.values, None)


def test_the_document_says_which_scope_an_operation_needs(org, client):
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert {"token": ["submit"]} in paths["/api/v1/jobs"]["post"]["security"]
    assert {"token": ["read"]} in paths["/api/v1/jobs"]["get"]["security"]
    assert {"token": ["operate"]} in paths["/api/v1/clusters"]["post"]["security"]


def test_the_page_makes_a_token_that_may_less(org, client):
    client.force_login(org.users["eve"])
    page = client.get("/settings/tokens/").content.decode()
    assert page.count('name="scopes"') == 4
    body = {"name": "ci", "lasts": "30", "scopes": ["read", "submit"], "tenant": "vision"}
    assert client.post("/settings/tokens/", body).status_code == 302
    token = ApiToken.objects.get(name="ci")
    assert (token.scopes, token.tenant.name) == ("read submit", "vision")
    assert "read, submit in vision" in client.get("/settings/tokens/").content.decode()
    for wrong in ({"scopes": []}, {"scopes": ["admin"]}, {"tenant": "law"}):
        assert client.post("/settings/tokens/", {**body, **wrong}).status_code == 422


def test_a_limited_user_is_never_saved(org):
    token = tokens.token_of_secret(
        create_token(org.users["ops"], "t", tenant="vision").secret, timezone.now()
    )
    with pytest.raises(RuntimeError):
        token.user.save()
    org.users["ops"].refresh_from_db()
    assert org.users["ops"].is_operator
