"""Queues over REST: rights, versions, states, limits below what runs, undo, the audit record."""

import pytest

from scheduling.models import Job
from tenants.models import AuditRecord, Queue, Tenant
from tenants.services.queues.change import MOST_QUEUES
from tenants.services.queues.terms import NAMES, QueueTerms
from tests.tenants.test_api_quotas import running

LIST = "/api/v1/queues"
V1 = {"If-Match": '"1"'}


def url(name="default", tenant="vision", verb=""):
    return f"{LIST}/{tenant}/{name}{verb and f'/{verb}'}"


def create(client, name, tenant="vision", query="", **body):
    body = {"tenant": tenant, "name": name, **body}
    return client.post(LIST + query, body, format="json")


def patch(client, name="default", version=1, query="", **body):
    headers = {"If-Match": f'"{version}"'}
    return client.patch(url(name) + query, body, format="json", headers=headers)


def act(client, verb, name="default", query="", reason="maintenance"):
    return client.post(url(name, verb=verb) + query, {"reason": reason}, format="json")


def delete(client, name, version=1, query="reason=x"):
    return client.delete(f"{url(name)}?{query}", headers={"If-Match": f'"{version}"'})


def job(org, queue="default", tenant="vision", **more):
    at = org.cluster.created_at
    more = {"name": "j", "state": "PENDING", "submitted_at": at, **more}
    return Job.objects.create(tenant=org.tenants[tenant], cluster=org.cluster, queue=queue, **more)


@pytest.fixture
def ada(org):
    """Tenant admin of vision."""
    return org.client("ada")


# --- reading --------------------------------------------------------------------------------------
def test_every_tenant_has_a_queue_and_everybody_sees_those_of_theirs(org, ada):
    seen = [(q["tenant"], q["name"]) for q in ada.get(LIST).json()["items"]]
    assert seen == [("vision", "default"), ("vision-lab", "default")]
    assert len(org.client("ops").get(LIST).json()["items"]) == len(org.tenants)
    assert org.client("vic").get(url()).status_code == 200
    assert org.client("lex").get(url()).status_code == 404
    assert ada.get(url("nope")).status_code == 404


def test_the_list_is_filtered_and_paged(org, ada):
    create(ada, "nightly", title="At night")
    act(ada, "hold", "nightly")

    def names(query):
        return [q["name"] for q in ada.get(f"{LIST}?{query}").json()["items"]]

    assert names("state=held") == ["nightly"]
    assert names("tenant=vision&q=night") == names("name=nightly") == ["nightly"]
    page = ada.get(f"{LIST}?limit=1").json()
    assert [q["tenant"] for q in ada.get(page["next"]).json()["items"]] == ["vision"]
    for query in ("tenant=law", "state=ended", "limit=0", "cursor=x", "color=red"):
        assert ada.get(f"{LIST}?{query}").status_code == 400, query


def test_a_list_costs_as_many_queries_for_many_queues_as_for_one(
    org, ada, django_assert_max_num_queries
):
    for i in range(20):
        Queue.objects.create(tenant=org.tenants["vision"], name=f"q{i}")
    ada.get(LIST)  # records the use of the token
    with django_assert_max_num_queries(8):
        assert len(ada.get(LIST).json()["items"]) == 22


def test_a_queue_tells_what_is_in_it(org, ada):
    running(org, "vision", "r", 4000)
    job(org)
    told = ada.get(url()).json()
    assert (told["waiting"], told["running"], told["gpus_held"]) == (1, 1, {"H100": 4})
    assert ada.get(url(tenant="vision-lab")).json()["waiting"] == 0


# --- make and change ------------------------------------------------------------------------------
SETTINGS = {
    "title": "At night",
    "weight": 2.5,
    "rank": -1,
    "order": "fair-users",
    "max_running": 3,
    "max_waiting": 0,
    "max_gpus": {"H100": 16, "A100": 0.5},
    "default_priority": 5,
    "max_priority": 10,
    "default_run_limit_s": 60,
    "max_run_limit_s": 3600,
    "default_preemptible": False,
    "kinds": ["training"],
    "roles": ["engineer"],
    "users": ["eve"],
    "groups": ["night-shift"],
}


def test_all_settings_are_kept_told_and_recorded(org, ada):
    assert SETTINGS.keys() == set(NAMES)
    made = create(ada, "nightly", reason="new", **SETTINGS)
    assert (made.status_code, made["ETag"]) == (201, '"1"'), made.json()
    assert made["Location"].endswith(url("nightly"))
    told = ada.get(url("nightly")).json()
    assert {name: told[name] for name in SETTINGS} == SETTINGS
    assert (told["state"], told["state_by"], told["state_at"]) == ("open", "", None)
    record = AuditRecord.objects.get(action="queue.created")
    assert (record.subject, record.reason, record.before) == ("vision/nightly", "new", None)
    assert {name: record.after[name] for name in SETTINGS} == SETTINGS
    columns = QueueTerms().columns()
    assert QueueTerms.of(Queue.objects.get(name="default", tenant__name="law")).columns() == columns


def test_patch_sets_what_it_names_and_leaves_the_rest(org, ada):
    create(ada, "nightly", **SETTINGS)
    changed = patch(ada, "nightly", max_running=None, users=[], reason="wider")
    assert (changed.status_code, changed["ETag"]) == (200, '"2"'), changed.json()
    told = ada.get(url("nightly")).json()
    expected = {**SETTINGS, "max_running": None, "users": []}
    assert {name: told[name] for name in SETTINGS} == expected
    record = AuditRecord.objects.get(action="queue.changed")
    assert (record.before["max_running"], record.after["max_running"]) == (3, None)
    same = patch(ada, "nightly", version=2, max_running=None)
    assert (same.status_code, same["ETag"]) == (200, '"2"')
    assert AuditRecord.objects.filter(action="queue.changed").count() == 1


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"weight": 0}, "/weight", "more than 0"),
        ({"weight": -1}, "/weight", "hold the queue"),
        ({"weight": "1"}, "/weight", "number"),
        ({"rank": 10**9}, "/rank", "from -1000000 to"),
        ({"order": "lifo"}, "/order", "Choose one of fifo, fair-users."),
        ({"max_running": -1}, "/max_running", "from 0 to"),
        ({"max_gpus": {"B200": 8}}, "/max_gpus/B200", "There is no GPU type “B200”"),
        ({"max_gpus": {"H100": -1}}, "/max_gpus/H100", "from 0 to"),
        ({"max_gpus": {"H100": 0.0001}}, "/max_gpus/H100", "three decimals"),
        ({"max_gpus": [8]}, "/max_gpus", "object"),
        ({"default_priority": 5, "max_priority": 4}, "/default_priority", "more than max_priority"),
        ({"default_run_limit_s": 61, "max_run_limit_s": 60}, "/default_run_limit_s", "more than"),
        ({"default_run_limit_s": 0}, "/default_run_limit_s", "from 1 to"),
        ({"default_preemptible": "no"}, "/default_preemptible", "true or false"),
        ({"kinds": ["batch"]}, "/kinds", "Choose one of training, inference, development."),
        ({"roles": ["viewer"]}, "/roles/0", "Choose one of engineer, tenant-admin."),
        ({"users": ["nobody"]}, "/users", "There is no user “nobody”"),
        ({"users": ["x"] * 257}, "/users", "at most 256"),
        ({"groups": [""]}, "/groups/0", "empty"),
        ({"state": "held"}, "/state", "Unknown field"),
        ({"name": "Night"}, "/name", "lower-case"),
        ({"tenant": "law"}, "/tenant", "There is no tenant “law”"),
    ],
)
def test_wrong_values_are_named_and_change_nothing(org, ada, body, pointer, words):
    before = Queue.objects.count()
    answer = create(ada, **{"name": "nightly", **body})
    errors = {e["pointer"]: e["detail"] for e in answer.json()["errors"]}
    assert answer.status_code == 422, answer.json()
    assert words in errors[pointer]
    assert Queue.objects.count() == before
    if not {"name", "tenant"} & body.keys():
        assert patch(ada, **body).status_code == 422
        assert Queue.objects.get(tenant__name="vision", name="default").version == 1
    assert not AuditRecord.objects.filter(action__startswith="queue.").exists()


def test_a_default_that_is_above_the_limit_of_before_is_refused(org, ada):
    create(ada, "nightly", max_priority=4)
    answer = patch(ada, "nightly", default_priority=5)
    assert answer.json()["errors"][0]["pointer"] == "/default_priority"


def test_a_name_is_taken_once_in_a_tenant(org, ada):
    assert create(ada, "nightly").status_code == 201
    again = create(ada, "nightly")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert "has a queue “nightly” already" in again.json()["detail"]
    assert create(ada, "nightly", "vision-lab").status_code == 201


def test_a_tenant_has_so_many_queues_at_most(org, ada):
    vision = org.tenants["vision"]
    rows = [Queue(tenant=vision, name=f"q{i}") for i in range(MOST_QUEUES - 1)]
    Queue.objects.bulk_create(rows)
    assert create(ada, "one-more").status_code == 409


def test_versions(org, ada):
    assert ada.get(url())["ETag"] == '"1"'
    assert ada.patch(url(), {"rank": 1}, format="json").status_code == 428
    stale = patch(ada, version=7, rank=1)
    assert (stale.status_code, stale["ETag"]) == (412, '"1"')
    assert stale.json()["current"]["rank"] == 0
    assert patch(ada).status_code == 422


def test_a_dry_run_changes_nothing(org, ada):
    made = create(ada, "nightly", query="?dry_run=true").json()
    assert (made["would"], made["result"]["name"]) == ("create", "nightly")
    changed = patch(ada, query="?dry_run=true", rank=3).json()
    assert (changed["would"], changed["result"]["rank"]) == ("update", 3)
    held = act(ada, "hold", query="?dry_run=true").json()
    assert held["result"]["state"] == "held"
    create(ada, "real")
    assert delete(ada, "real", query="reason=x&dry_run=true").json()["would"] == "delete"
    assert {q.name: q.version for q in Queue.objects.filter(tenant__name="vision")} == {
        "default": 1,
        "real": 1,
    }
    assert AuditRecord.objects.count() == 1


# --- rights ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("who", "status"),
    [("ops", 200), ("root", 200), ("ada", 200), ("eve", 403), ("vic", 403), ("lex", 404)],
)
def test_who_administers_the_tenant_changes_its_queues(org, who, status):
    create(org.client("ops"), "other")
    client = org.client(who)
    assert patch(client, rank=1).status_code == status
    assert act(client, "hold").status_code == status
    assert act(client, "release").status_code == status
    made = create(client, "mine")
    assert made.status_code == {200: 201, 403: 403, 404: 422}[status]
    assert delete(client, "other").status_code == (204 if status == 200 else status)


def test_a_token_needs_the_right_scope(org):
    from tenants.services.tokens import create_token

    token = create_token(org.users["ada"], "submits", scopes=["read", "submit"])
    client = org.client("ada")
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token.secret}")
    assert client.get(url()).status_code == 200
    assert act(client, "hold").status_code == 403


# --- states ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("verb", "state"),
    [("hold", "held"), ("drain", "draining"), ("close", "closed")],
)
def test_a_state_is_set_with_a_reason_and_taken_back(org, ada, verb, state):
    done = act(ada, verb)
    assert (done.status_code, done["ETag"]) == (200, '"2"'), done.json()
    told = done.json()
    assert (told["state"], told["state_reason"], told["state_by"]) == (state, "maintenance", "ada")
    again = act(ada, verb)
    assert again.status_code == 409
    assert f"is {state} already, since" in again.json()["detail"]
    record = AuditRecord.objects.get(action="queue.changed")
    assert (record.before["state"], record.after["state"]) == ("open", state)
    assert (record.reason, record.actor_name, record.source) == ("maintenance", "ada", "api")
    assert act(ada, "open").json()["state"] == "open"
    assert act(ada, "open").status_code == 409


def test_only_what_is_held_is_released(org, ada):
    refused = act(ada, "release")
    assert (refused.status_code, "is open, not held" in refused.json()["detail"]) == (409, True)
    act(ada, "drain")
    assert "Open it instead." in act(ada, "release").json()["detail"]
    act(ada, "hold")
    assert act(ada, "release").json()["state"] == "open"


@pytest.mark.parametrize("reason", ["", "  ", "x" * 2001, None])
def test_a_state_needs_a_reason(org, ada, reason):
    assert act(ada, "hold", reason=reason).status_code == 422
    assert ada.post(url(verb="hold"), {}, format="json").status_code == 422
    assert Queue.objects.get(tenant__name="vision", name="default").state == "open"


def test_a_state_is_set_once_for_one_key(org, ada):
    headers = {"Idempotency-Key": "k"}
    body = {"reason": "x"}
    first = ada.post(url(verb="hold"), body, format="json", headers=headers)
    again = ada.post(url(verb="hold"), body, format="json", headers=headers)
    assert first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true"


# --- limits below current values ------------------------------------------------------------------
def test_a_limit_below_what_is_there_is_set_and_told(org, ada):
    running(org, "vision", "a", 4000)
    running(org, "vision", "b", 4000)
    job(org)
    told = patch(ada, max_running=1, max_waiting=0, max_gpus={"H100": 6}).json()["warnings"]
    assert told == [
        "2 of its jobs run, and the limit is 1: they keep running, and no job starts until "
        "fewer run.",
        "Its jobs hold 8 GPUs of H100, and the limit is 6 GPUs: they keep running, and no job "
        "starts there until they hold less.",
        "1 of its jobs wait, and the limit is 0: they stay, and no new job is accepted until "
        "fewer wait.",
    ]
    assert patch(ada, version=2, max_running=2, max_waiting=1, max_gpus={}).json()["warnings"] == []
    assert patch(ada, version=3, query="?dry_run=true", max_running=0).json()["warnings"]


# --- deletion -------------------------------------------------------------------------------------
def test_a_queue_with_jobs_is_kept_and_says_how_many(org, ada):
    create(ada, "nightly")
    job(org, "nightly", name="one")
    job(org, "nightly", name="two", state="RUNNING")
    job(org, "nightly", name="past", state="SUCCEEDED")
    job(org, name="elsewhere")
    refused = delete(ada, "nightly")
    assert refused.status_code == 409
    detail = refused.json()["detail"]
    assert detail.startswith("Queue vision/nightly has 2 jobs not over, 1 of which wait (")
    Job.objects.exclude(name="elsewhere").update(state="SUCCEEDED")
    assert delete(ada, "nightly", query="").status_code == 422
    assert delete(ada, "nightly", version=2).status_code == 412
    assert delete(ada, "nightly").status_code == 204
    assert ada.get(url("nightly")).status_code == 404
    assert Job.objects.get(name="past").queue == "nightly"
    record = AuditRecord.objects.get(action="queue.deleted")
    assert (record.subject, record.after, record.reason) == ("vision/nightly", None, "x")


def test_the_default_queue_and_the_last_one_stay(org, ada):
    create(ada, "nightly")
    refused = delete(ada, "default")
    assert (
        refused.status_code,
        "takes the jobs that name no queue" in refused.json()["detail"],
    ) == (
        409,
        True,
    )
    Queue.objects.filter(tenant__name="vision", name="default").delete()
    refused = delete(ada, "nightly")
    assert (refused.status_code, "the tenant's last queue" in refused.json()["detail"]) == (
        409,
        True,
    )


def test_a_tenant_goes_with_its_queues(org):
    ops = org.client("ops")
    assert create(ops, "extra", "vision-lab").status_code == 201
    assert ops.delete("/api/v1/tenants/vision-lab").status_code == 204
    assert not Queue.objects.filter(tenant__name="vision-lab").exists()
    assert not Tenant.objects.filter(name="vision-lab").exists()


# --- undo -----------------------------------------------------------------------------------------
def changes(client):
    return client.get("/api/v1/audit?action=queue").json()["items"]


def revert(client, record, version=None, name="nightly", query=""):
    headers = {"If-None-Match": "*"} if version is None else {"If-Match": f'"{version}"'}
    path = f"{url(name)}/changes/{record['id']}/revert{query}"
    return client.post(path, {"reason": "Too early"}, format="json", headers=headers)


def test_a_change_is_taken_back_and_what_others_set_stays(org, ada):
    create(ada, "nightly", rank=1)
    patch(ada, "nightly", rank=2, max_running=5)
    record = changes(ada)[0]
    patch(ada, "nightly", version=2, title="Night")
    would = revert(ada, record, 3, query="?dry_run=true").json()
    assert (would["would"], would["result"]["rank"]) == ("update", 1)
    done = revert(ada, record, 3)
    assert (done.status_code, done["ETag"]) == (200, '"4"'), done.json()
    told = done.json()["queue"]
    assert (told["rank"], told["max_running"], told["title"]) == (1, None, "Night")
    newest = changes(ada)[0]
    assert (newest["reverts"], newest["reason"]) == (record["id"], "Too early")
    assert (
        "already has its values from before this change" in revert(ada, record, 4).json()["detail"]
    )


def test_what_was_set_since_is_named_and_not_overwritten(org, ada):
    create(ada, "nightly")
    patch(ada, "nightly", rank=2)
    record = changes(ada)[0]
    patch(ada, "nightly", version=2, rank=3)
    refused = revert(ada, record, 3)
    assert refused.status_code == 409
    assert (
        "rank was set to 2 by this change and is 3 now. ada changed it"
        in (refused.json()["detail"])
    )


def test_a_hold_is_taken_back(org, ada):
    act(ada, "hold")
    done = revert(ada, changes(ada)[0], 2, name="default")
    assert (done.json()["queue"]["state"], done.json()["queue"]["state_by"]) == ("open", "ada")


def test_what_was_made_goes_and_what_was_deleted_comes_back(org, ada):
    create(ada, "nightly", **SETTINGS)
    made = changes(ada)[0]
    job(org, "nightly")
    assert revert(ada, made, 1).status_code == 409
    Job.objects.all().delete()
    gone = revert(ada, made, 1)
    assert (gone.status_code, gone.json()["queue"]) == (200, None)
    deleted = changes(ada)[0]
    assert revert(ada, deleted, query="?dry_run=true").json()["would"] == "create"
    back = revert(ada, deleted)
    assert {n: back.json()["queue"][n] for n in SETTINGS} == SETTINGS
    assert "A queue of that name exists again" in revert(ada, deleted, 1).json()["detail"]


def test_who_may_not_change_a_queue_may_not_take_a_change_back(org, ada):
    act(ada, "hold")
    record = changes(ada)[0]
    assert revert(org.client("eve"), record, 2, name="default").status_code == 404
    assert revert(ada, record, 2, name="other").status_code == 404
    assert revert(org.client("root"), record, 2, name="default").status_code == 200
