"""Jobs submitted while another one is being written are answered as if each had come alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from scheduling.models import Job, JobEvent, PodSet
from scheduling.services.jobs import submit
from scheduling.services.jobs.submission import acceptance, together, written
from tenants.models import IdempotencyKey, Queue, Tenant
from tenants.services import joined
from tenants.services.receipts import Receipt
from tests import organisation
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/v1/jobs"
HELLO = {"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 1}
ITS_OWN = ("id", "submitted_at", "reason_at", "instance", "request_id")


@pytest.fixture
def org(monkeypatch):
    # However slow the machine is, nobody gives up waiting.
    monkeypatch.setattr(joined, "TURN_S", 60)
    org = organisation.build()
    Tenant.objects.filter(name="law").update(max_waiting=1)
    Queue.objects.create(tenant=org.tenants["vision"], name="closed", state="closed")
    Queue.objects.create(tenant=org.tenants["vision"], name="short", max_waiting=2)
    org.clients = {name: org.client(name) for name in org.users}
    for client in org.clients.values():
        client.get(f"{URL}/none")  # the last use of a token is written once a minute
    return org


class Door:
    """Submissions that arrive while one is in progress. `together`: the size of each batch."""

    def __init__(self, monkeypatch):
        self.came, self.go, self.together = Event(), Event(), []
        self.joined = joined.Joined(self._alone, self._together, 32)
        monkeypatch.setattr(submit, "_joined", self.joined)

    def _alone(self, submission):
        if not self.came.is_set():
            self.came.set()
            assert self.go.wait(60)
        return submit._submitted(submission)

    def _together(self, submissions):
        self.together.append(len(submissions))
        return submit.submit_together(submissions)

    def meanwhile(self, *posts, then=lambda: None):
        """Return the answers to these submissions. They arrive in this order while the first one is
        in progress, before `then` is done."""

        def run(post):
            try:
                return post()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(posts)) as pool:
            first = pool.submit(run, posts[0])
            assert self.came.wait(60)
            others = []
            for number, post in enumerate(posts[1:], 1):
                others.append(pool.submit(run, post))
                until(lambda number=number: len(self.joined._waiting) == number)
            then()
            self.go.set()
            return [first.result(60), *(other.result(60) for other in others)]


@pytest.fixture
def door(org, monkeypatch):
    return Door(monkeypatch)


def posting(org, who, document, **headers):
    return lambda: org.clients[who].post(URL, document, format="json", headers=headers)


def told(answer):
    body = {name: value for name, value in answer.json().items() if name not in ITS_OWN}
    if choice := body.get("cluster_choice"):
        del choice["at"]
    return answer.status_code, body


MIXED = [
    ("eve", HELLO),
    ("joe", HELLO | {"name": "train", "gpus": 8, "replicas": 2, "labels": {"a": "b"}}),
    ("vic", HELLO),  # may only read
    ("lex", HELLO),  # of a tenant that they cannot see
    ("lex", HELLO | {"tenant": "law", "name": "one"}),
    ("lex", HELLO | {"tenant": "law", "name": "too-many"}),
    ("eve", HELLO | {"tenant": "ml"}),  # above their own tenant
    ("root", HELLO | {"tenant": "ml", "cluster": "any"}),
    ("eve", HELLO | {"gpu_type": "B200"}),
    ("eve", HELLO | {"gpus": 4096}),
    ("eve", HELLO | {"queue": "none"}),
    ("eve", HELLO | {"queue": "closed"}),
    ("eve", HELLO | {"queue": "short", "name": "short-0"}),
    ("ops", HELLO | {"queue": "short", "name": "short-1"}),
    ("eve", HELLO | {"queue": "short", "name": "short-2"}),
    ("eve", HELLO | {"after": ["7f000000-0000-4000-8000-000000000000"]}),
    ("ops", HELLO | {"tenant": "vision-lab", "name": "last"}),
]


def test_each_is_answered_as_if_it_came_alone(org, door):
    posts = [posting(org, who, document) for who, document in MIXED]
    together = [told(answer) for answer in door.meanwhile(posting(org, "eve", HELLO), *posts)][1:]
    assert door.together == [len(MIXED)]
    names = list(Job.objects.order_by("submitted_at").values_list("name", flat=True))
    rows = [
        sorted(model.objects.values_list("job__name", flat=True)) for model in (PodSet, JobEvent)
    ]
    assert rows == [sorted(names), sorted(names)]
    assert Job.objects.values("submitted_at").distinct().count() == len(names)
    Job.objects.all().delete()
    posting(org, "eve", HELLO)()
    alone = [told(post()) for post in posts]
    assert together == alone
    assert names == list(Job.objects.order_by("submitted_at").values_list("name", flat=True))
    assert {status for status, _ in alone} == {201, 403, 404, 409, 422}
    assert door.together == [len(MIXED)]


def test_each_job_is_of_who_submitted_it(org, door):
    who = ["eve", "joe", "ops", "root"]
    posts = [posting(org, name, HELLO | {"name": f"of-{name}"}) for name in who]
    door.meanwhile(posting(org, "eve", HELLO), *posts)
    assert door.together == [4]
    jobs = Job.objects.exclude(name="hello").values_list("name", "user__username")
    assert dict(jobs) == {f"of-{name}": name for name in who}
    events = JobEvent.objects.exclude(job__name="hello").values_list("job__name", "actor")
    assert dict(events) == {f"of-{name}": name for name in who}


def test_they_are_written_by_as_few_statements_as_one(org):
    statements = []
    for many in (2, 12):
        one = submit.UsersJob(org.users["eve"], HELLO)
        with CaptureQueriesContext(connection) as asked:
            assert len(submit.submit_together([one] * many)) == many
        statements.append(len(asked))
    assert statements[0] == statements[1] <= 8, asked.captured_queries


def broken(function, name_of):
    """Fail for one job."""

    def failing(*args):
        if name_of(*args) == "broken":
            raise ZeroDivisionError
        return function(*args)

    return failing


BROKEN = {
    "read": (acceptance, "job_spec", lambda document: document["name"]),
    "written": (written, "rows_of", lambda actor, order, at: order.spec.job.name),
}


@pytest.mark.parametrize("where", BROKEN)
def test_one_that_cannot_be_read_or_written_harms_no_other(org, door, monkeypatch, where):
    module, name, name_of = BROKEN[where]
    monkeypatch.setattr(module, name, broken(getattr(module, name), name_of))
    org.clients["joe"].raise_request_exception = False
    answers = door.meanwhile(
        posting(org, "eve", HELLO),
        posting(org, "eve", HELLO),
        posting(org, "joe", HELLO | {"name": "broken"}),
        posting(org, "ops", HELLO),
    )
    assert door.together == [3]
    assert [answer.status_code for answer in answers] == [201, 201, 500, 201]
    assert Job.objects.count() == 3


def test_who_is_told_that_the_database_is_away_has_submitted_nothing(org, door, monkeypatch):
    def away(*_):
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr("scheduling.services.jobs.submission.together.write_orders", away)
        posts = [posting(org, "eve", HELLO | {"name": f"lost-{i}"}) for i in range(3)]
        answers = door.meanwhile(posting(org, "eve", HELLO), *posts)
    assert [answer.status_code for answer in answers] == [201, 503, 503, 503]
    assert {answer.json()["code"] for answer in answers[1:]} == {"unavailable"}
    assert [answer.headers["Retry-After"] for answer in answers[1:]] == ["5"] * 3
    assert list(Job.objects.values_list("name", flat=True)) == ["hello"]


def keyed(org, who, document, key):
    """Repeat while asked to. In memory, SQLite refuses to read a table while another thread
    writes it; files and PostgreSQL have no such limit."""
    post = posting(org, who, document, **{"Idempotency-Key": key})

    def repeated():
        answer = post()
        for _ in range(100 if connection.vendor == "sqlite" else 0):
            if answer.status_code != 503:
                break
            answer = post()
        return answer

    return repeated


def test_those_with_a_key_are_written_with_others(org, door):
    answers = door.meanwhile(
        posting(org, "eve", HELLO),
        keyed(org, "eve", HELLO | {"name": "a"}, "k"),
        keyed(org, "joe", HELLO | {"name": "b"}, "k"),  # keys belong to their user
        keyed(org, "eve", HELLO | {"gpus": 4096}, "refused"),
        keyed(org, "lex", HELLO | {"tenant": "law", "name": "one"}, "k"),
        keyed(org, "lex", HELLO | {"tenant": "law", "name": "too-many"}, "late"),
        posting(org, "ops", HELLO),
    )
    assert door.together == [6]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 422, 201, 409, 201]
    rows = IdempotencyKey.objects.values_list("user__username", "key", "status")
    assert sorted(rows) == [("eve", "k", 201), ("joe", "k", 201), ("lex", "k", 201)]
    for who, name, answer in [("eve", "a", answers[1]), ("joe", "b", answers[2])]:
        again = keyed(org, who, HELLO | {"name": name}, "k")()
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.headers["Location"] == answer.headers["Location"]
        assert again.json() == answer.json()
        assert again.json()["name"] == name
    other = keyed(org, "eve", HELLO, "k")()
    assert (other.status_code, other.json()["code"]) == (409, "key-reused")
    assert Job.objects.count() == 5
    assert keyed(org, "eve", HELLO, "refused")().status_code == 201


def test_a_key_that_is_there_is_answered_as_before(org, door):
    """The key occurs twice in one transaction, and once from before it."""
    before = keyed(org, "eve", HELLO | {"name": "before"}, "old")
    door.came.set()
    once = before()
    door.came.clear()
    answers = door.meanwhile(
        posting(org, "joe", HELLO),
        before,
        keyed(org, "eve", HELLO, "old"),
        keyed(org, "joe", HELLO | {"name": "new"}, "k"),
        keyed(org, "joe", HELLO | {"name": "new"}, "k"),
        keyed(org, "joe", HELLO | {"name": "other"}, "k"),
        posting(org, "ops", HELLO),
    )
    assert door.together == [6]
    assert [answer.status_code for answer in answers] == [201, 201, 409, 201, 201, 409, 201]
    assert answers[1].json() == once.json()
    assert answers[4].json() == answers[3].json()
    assert [answers[i].headers["Idempotency-Replayed"] for i in (1, 4)] == ["true"] * 2
    assert {answers[i].json()["code"] for i in (2, 5)} == {"key-reused"}
    names = Job.objects.values_list("name", flat=True)
    assert sorted(names) == ["before", "hello", "hello", "new"]


def test_one_with_a_key_that_came_meanwhile_harms_no_other(org, door, monkeypatch):
    """Another process used the key after keys were looked up: everything is rolled back, and
    each job goes alone."""

    def looked_too_early(receipts):
        IdempotencyKey.objects.create(user=org.users["joe"], key="k", status=200, response={})
        return set()

    monkeypatch.setattr(together, "taken", looked_too_early)
    answers = door.meanwhile(
        posting(org, "eve", HELLO),
        keyed(org, "eve", HELLO, "k"),
        keyed(org, "joe", HELLO, "k"),
        posting(org, "ops", HELLO),
    )
    assert [answer.status_code for answer in answers] == [201, 201, 409, 201]
    assert answers[2].json()["code"] == "key-reused"
    assert Job.objects.count() == IdempotencyKey.objects.count() + 1 == 3


def test_keys_add_two_statements_for_all_of_them(org):
    def receipt(number):
        fresh = {"user": org.users["eve"], "key": f"k{number}", "method": "POST", "path": URL}
        return Receipt(
            org.users["eve"].pk, fresh["key"], lambda job: IdempotencyKey(**fresh, status=201)
        )

    def statements(receipts):
        jobs = [submit.UsersJob(org.users["eve"], HELLO, one) for one in receipts]
        with CaptureQueriesContext(connection) as asked:
            assert all(isinstance(one, Job) for one in submit.submit_together(jobs))
        return len(asked)

    assert statements([receipt(i) for i in range(12)]) == statements([None] * 12) + 2
    assert IdempotencyKey.objects.count() == 12
