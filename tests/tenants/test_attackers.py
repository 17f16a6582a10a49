"""Attacks by people with few or no rights: guesses, load, secrets, logs, spreadsheets."""

import csv
import io
import logging
import threading
import time

import pytest
from django.core.cache import cache
from django.test import Client, RequestFactory

from kant.client import output
from kant.log_lines import ShortArguments
from metrics.gpu_time import usage
from scheduling.job_fields.secrets import looks_secret
from scheduling.kube.seam import PodFacts
from scheduling.models import PodSet
from scheduling.session.pods.pod import failure_text
from tenants.api import docs
from tenants.models import Membership
from tenants.sign_in import attempts
from tenants.web.csv_files import plain_cell, write_csv

LOGIN, JOBS = "/login/", "/api/v1/jobs"


@pytest.fixture(autouse=True)
def _no_attempts():
    cache.clear()
    yield
    cache.clear()


def sign_in(client, name, password, address="10.0.0.1", **headers):
    return client.post(
        LOGIN, {"username": name, "password": password}, REMOTE_ADDR=address, **headers
    )


# --- guesses --------------------------------------------------------------------------------------
def test_one_password_on_many_names_is_limited_by_address(org, client, monkeypatch):
    monkeypatch.setattr(attempts, "ADDRESS_ATTEMPTS", 5)
    for index in range(5):
        assert "is wrong" in sign_in(client, f"user-{index}", "spring").content.decode()
    assert "from this address" in sign_in(client, "eve", "x").content.decode()
    assert sign_in(client, "eve", "x", "10.0.0.2").status_code == 302


def test_who_knows_one_password_guesses_no_more_of_others(org, client, monkeypatch):
    monkeypatch.setattr(attempts, "ADDRESS_ATTEMPTS", 5)
    for index in range(5):
        sign_in(client, f"user-{index}", "spring")
        if index < 4:
            assert sign_in(Client(), "eve", "x").status_code == 302
    assert "from this address" in sign_in(Client(), "eve", "x").content.decode()


def test_an_office_behind_one_address_signs_in(org, monkeypatch):
    monkeypatch.setattr(attempts, "ADDRESS_ATTEMPTS", 5)
    for _ in range(12):
        assert sign_in(Client(), "eve", "x").status_code == 302


@pytest.mark.parametrize(
    ("addresses", "others"),
    [
        ("2001:db8::{}", "2001:db8:0:1::1"),
        ("2001:db8::{}:ffff:1:1", "2001:db9::1"),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8"),
    ],
)
def test_who_has_many_addresses_guesses_no_more(org, client, monkeypatch, addresses, others):
    monkeypatch.setattr(attempts, "ADDRESS_ATTEMPTS", 5)
    for index in range(5):
        sign_in(client, f"user-{index}", "spring", addresses.format(index))
    assert attempts.too_many("eve", addresses.format(99))
    assert not attempts.too_many("eve", others)
    assert attempts.too_many("eve", "10.0.0.7") == addresses.startswith("::ffff")


PROXY = ["10.0.0.0/24", "::1"]


@pytest.mark.parametrize(
    ("trusted", "peer", "said", "address"),
    [
        ([], "10.0.0.1", "9.9.9.9", "10.0.0.1"),
        (PROXY, "10.0.0.1", "9.9.9.9", "9.9.9.9"),
        (PROXY, "10.0.0.1", "1.1.1.1, 9.9.9.9", "9.9.9.9"),
        (PROXY, "10.0.0.1", "1.1.1.1, 9.9.9.9, 10.0.0.2", "9.9.9.9"),
        (PROXY, "10.0.1.1", "9.9.9.9", "10.0.1.1"),
        (PROXY, "10.0.0.1", "", "10.0.0.1"),
        (PROXY, "10.0.0.1", "x, ", "10.0.0.1"),
        (PROXY, "::1", "2001:db8::1", "2001:db8::1"),
        (PROXY, "", "9.9.9.9", ""),
    ],
)
def test_where_a_request_comes_from(settings, trusted, peer, said, address):
    settings.KANT_TRUSTED_PROXIES = trusted
    request = RequestFactory().get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=said)
    assert attempts.client_address(request) == address


def test_a_guesser_behind_the_proxy_locks_out_nobody_else(org, client, settings):
    settings.KANT_TRUSTED_PROXIES = ["10.0.0.1"]
    for _ in range(11):
        sign_in(client, "eve", "guess", HTTP_X_FORWARDED_FOR="9.9.9.9")
    assert sign_in(client, "eve", "x", HTTP_X_FORWARDED_FOR="9.9.9.9").status_code == 200
    assert sign_in(client, "eve", "x", HTTP_X_FORWARDED_FOR="8.8.8.8").status_code == 302


def test_passwords_are_looked_at_one_at_a_time(monkeypatch):
    monkeypatch.setattr(attempts, "TURN_S", 0.2)
    entered, leave = threading.Event(), threading.Event()

    def look():
        with attempts.turn():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=look)
    thread.start()
    assert entered.wait(60)
    with pytest.raises(attempts.Busy), attempts.turn():
        pass
    leave.set()
    thread.join()
    with attempts.turn():
        pass


def test_who_gets_no_turn_is_told(org, client, monkeypatch):
    monkeypatch.setattr(attempts, "TURN_S", 0.01)
    with attempts.turn():
        assert "Try again in a few seconds" in sign_in(client, "eve", "x").content.decode()
    assert sign_in(client, "eve", "x").status_code == 302


# --- load -----------------------------------------------------------------------------------------
def test_the_document_of_the_api_is_computed_once(db, client, monkeypatch):
    docs._computed.clear()
    first = client.get("/api/v1/openapi.json")

    def again(*_, **__):
        raise AssertionError("computed twice")

    monkeypatch.setattr("drf_spectacular.generators.SchemaGenerator.get_schema", again)
    started = time.process_time()
    for _ in range(20):
        assert client.get("/api/v1/openapi.json").content == first.content
    assert time.process_time() - started < 1
    same = client.get("/api/v1/openapi.json", headers={"If-None-Match": first["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert first.json()["openapi"].startswith("3.1")


# --- sessions -------------------------------------------------------------------------------------
def test_who_uses_no_page_for_long_is_signed_out(org, client, settings, monkeypatch):
    settings.KANT_IDLE_MINUTES = 30
    now = time.time()
    monkeypatch.setattr("tenants.sign_in.idle.time.time", lambda: now)
    client.force_login(org.users["eve"])
    assert client.get("/jobs/").status_code == 200
    now += 29 * 60
    assert client.get("/jobs/").status_code == 200
    now += 29 * 60
    assert client.get("/jobs/", headers={"HX-Request": "true"}).status_code == 200
    assert client.get("/feed/", headers={"Accept": "text/event-stream"}).status_code == 200
    now += 2 * 60
    assert client.get("/jobs/", headers={"HX-Request": "true"}).status_code == 401
    assert client.get("/jobs/").status_code == 302
    assert client.get("/api/v1/me").status_code == 401


# --- secrets --------------------------------------------------------------------------------------
ENV = {"WANDB_API_KEY": "k1", "hf_token": "t1", "DB_PASSWORD": "p1", "A_SECRET_B": "s1", "LR": "1",
       "DATABASE_URL": "postgres://me:u1@db/kant"}  # fmt: skip


SECRET = """
    AWS_SECRET_ACCESS_KEY hf_token PGPASSWORD MYSQL_PWD DB_PASS PGPASS PW dbPassword GITHUB_PAT
    SSH_PASSPHRASE GOOGLE_CREDENTIALS DOCKER_CREDS REDIS_AUTH SENTRY_DSN AZURE_SAS JWT SLACK_WEBHOOK
    SESSION_COOKIE apikey DATABASE_URL=postgres://me:hunter2@db/kant BROKER=redis://:x@cache:6379/0
    HEADER=Bearer~abc SSH=-----BEGIN~OPENSSH~PRIVATE~KEY----- BEARER CONNECTION_STRING
    AZURE_CONN_STR dbpass USERPASS smtp_pass OTP ARGS=--lr~1~--password~hunter2
    ARGS=--api-key=hunter2 ARGS=--db_password~hunter2 J={"password":"hunter2"}
    AZ=AccountName=a;AccountKey=hunter2;x=y DB=host=h~user=u~password=hunter2
    BACK=https://h/?a=b&token=hunter2 GIT=ghp_0123456789abcdef0123 X=hf_0123456789abcdefgh
    Y=xoxb-0123456789-abcdefgh Z=AKIA0123456789ABCDEF HOOK=https://hooks.slack.com/services/T0/B0/x
    J={'access_key'~:~'hunter2'}
    W=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x
"""
PLAIN = """
    LR PATH PYTHONPATH AUTHOR BYPASS PASSES PATIENCE DATASET NCCL_DEBUG MASTER=tcp://10.0.0.1:29500
    DATABASE_URL=postgres://db:5432/kant?x=a@b OWNER=eve@example.com COMPASS SURPASS=1
    ARGS=--pad-token~0~--max-tokens~8 ARGS=max_tokens=8 J={"tokens":8} ARGS=--tokenizer~llama
    X=sk-short Y=hf_home Z=--bypass=1 TEXT=pass~2~of~3 SPLIT=train,test
"""


@pytest.mark.parametrize(("variables", "hidden"), [(SECRET, True), (PLAIN, False)])
def test_what_looks_secret(variables, hidden):
    for variable in variables.split():
        name, _, value = variable.replace("~", " ").partition("=")
        assert looks_secret(name, value or "x") == hidden, variable


def test_viewers_do_not_see_secrets_of_jobs(org):
    body = {"name": "x", "tenant": "vision", "gpus": 1, "gpu_type": "H100", "env": ENV}
    eve = org.client("eve")
    job = eve.post(JOBS, body, format="json").json()["id"]
    array = eve.post(JOBS, {**body, "array": {"count": 2}}, format="json").json()["id"]
    hidden = {**dict.fromkeys(ENV, "(hidden)"), "LR": "1"}
    # An engineer who became a viewer sees what they submitted.
    mine = org.client("joe").post(JOBS, {**body, "name": "joes"}, format="json").json()["id"]
    Membership.objects.filter(user=org.users["joe"]).update(role="viewer")
    for who, sees in (("eve", ENV), ("ada", ENV), ("root", ENV), ("ops", ENV), ("vic", hidden),
                      ("joe", hidden)):  # fmt: skip
        asks = org.client(who)
        read = [
            asks.get(f"{JOBS}/{job}").json()["pod_sets"][0]["env"],
            asks.get(f"{JOBS}/{job}/document").json()["env"],
            asks.get(f"/api/v1/job-arrays/{array}/document").json()["env"],
            *(
                each["pod_sets"][0]["env"]
                for each in asks.get(f"{JOBS}?q={job[:8]}").json()["items"]
            ),
        ]
        assert len(read) == 4
        assert all({n: e[n] for n in ENV} == sees for e in read), who
    joe = org.client("joe")
    assert joe.get(f"{JOBS}/{mine}").json()["pod_sets"][0]["env"] == ENV
    assert PodSet.objects.filter(job=job).get().env == ENV
    page = Client()
    page.force_login(org.users["vic"])
    assert not any(
        s in page.get(f"/jobs/{job}/").content.decode() for s in ("k1<", "t1<", "p1<", "u1@")
    )


def commands_of(told):
    """Return everything that a pod set runs."""
    beside = [each["command"] for name in ("init_containers", "sidecars") for each in told[name]]
    return [told["command"], *beside, *(probe["command"] for probe in told["probes"].values())]


def test_viewers_do_not_see_secrets_of_commands(org):
    secret = ["sh", "-c", "PGPASSWORD=S3cr3tX psql; train --token-budget 512 --token S3cr3tX"]
    seen = ["sh", "-c", "PGPASSWORD=(hidden) psql; train --token-budget 512 --token (hidden)"]
    more = {"name": "more", "image": "x", "command": secret}
    body = {
        "name": "x",
        "tenant": "vision",
        "gpus": 1,
        "gpu_type": "H100",
        "command": secret,
        "init_containers": [more],
        "sidecars": [{**more, "name": "beside"}],
        "probes": {"startup": {"command": secret}},
        "annotations": {"example.com/from": "https://me:S3cr3tX@host/x"},
    }
    eve = org.client("eve")
    job = eve.post(JOBS, body, format="json").json()["id"]
    array = eve.post(JOBS, {**body, "array": {"count": 2}}, format="json").json()["id"]
    for who in ("eve", "ada", "root", "ops", "vic"):
        asks = org.client(who)
        listed = asks.get(f"{JOBS}?q={job[:8]}").json()["items"]
        read = [
            asks.get(f"{JOBS}/{job}").json()["pod_sets"][0],
            asks.get(f"{JOBS}/{job}/document").json(),
            asks.get(f"/api/v1/job-arrays/{array}/document").json(),
            *(each["pod_sets"][0] for each in listed),
        ]
        assert len(read) == 4
        for told in read:
            assert commands_of(told) == [seen if who == "vic" else secret] * 4
            assert ("S3cr3tX" in str(told)) == (who != "vic")
    assert PodSet.objects.filter(job=job).get().command == secret
    page = Client()
    page.force_login(org.users["vic"])
    for url in (
        f"/jobs/{job}/",
        f"/jobs/new/?like={job}",
        "/jobs/",
        "/jobs/?format=csv",
        "/events/",
    ):
        assert "S3cr3tX" not in page.get(url, follow=True).content.decode(), url


def test_what_a_runtime_quotes_of_a_command_has_no_secrets():
    said = 'exec: "sh -c train --password S3cr3tX": not found'
    pod = PodFacts(
        **dict.fromkeys(("namespace", "name", "uid", "node", "reason", "resource_version"), "x"),
        **dict.fromkeys(("owned", "deleting", "gated"), False),
        **dict.fromkeys(("gpus", "gpu_milli", "cpu_milli", "memory_mib", "priority"), 0),
        **dict.fromkeys(("exit_code", "started_at", "finished_at")),
        extended={},
        labels={},
        annotations={},
        phase="Failed",
        message=said,
    )
    told = failure_text(pod)
    assert "S3cr3tX" not in told
    assert "exec: " in told


# --- logs and spreadsheets ------------------------------------------------------------------------
def test_lines_of_the_log_are_short_and_one_each(settings):
    path = "/jobs/" + "a" * 5000 + "\nforged line\x1b[2J"
    record = logging.LogRecord("n", 30, "f", 1, "Not Found: %s", (path,), None)
    assert ShortArguments().filter(record)
    assert len(record.getMessage()) < 300
    assert "characters)" in record.getMessage()
    record = logging.LogRecord("n", 30, "f", 1, "%s %d", ("a\nb", 7), None)
    ShortArguments().filter(record)
    assert record.getMessage() == "a\\nb 7"
    assert settings.LOGGING["handlers"]["stderr"]["filters"] == ["short", "clients"]


@pytest.fixture
def log(monkeypatch):
    """Collect what is written to the log meanwhile."""
    told = io.StringIO()
    [handler] = [h for h in logging.getLogger().handlers if h.name == "stderr"]
    # Its former stream may be closed by now, so it is not flushed.
    monkeypatch.setattr(handler, "stream", told)
    return told


CLIENT_FAULTS = {
    "a wrong host": lambda c: c.get(LOGIN, headers={"host": "evil.example"}),
    "a long host": lambda c: c.get(LOGIN, headers={"host": "e" * 60_000}),
    "a host of two lines": lambda c: c.get(LOGIN, headers={"host": "a\nforged"}),
    "too many parameters": lambda c: c.get(f"{LOGIN}?{'a=&' * 6000}"),
    "too many of REST": lambda c: c.get(f"{JOBS}?{'a=&' * 6000}"),
    "too many fields": lambda c: c.post(LOGIN, {f"a{i}": "1" for i in range(6000)}),
    "no form": lambda c: c.post(LOGIN, b"x", content_type="multipart/form-data; boundary=b"),
    "a boundary of signs": lambda c: c.post(
        LOGIN, b"", content_type="multipart/form-data; boundary=é"
    ),
    "no such page": lambda c: c.get("/" + "a" * 9000),
    "a wrong method": lambda c: c.put(LOGIN),
    "no token": lambda c: c.post(LOGIN, {"username": "x"}),
    "a forged cookie": lambda c: c.get("/jobs/", headers={"cookie": "sessionid=" + "a" * 9000}),
}


@pytest.mark.parametrize("fault", CLIENT_FAULTS)
def test_what_a_client_does_wrong_is_a_line_of_the_log_at_most(org, log, fault):
    answer = CLIENT_FAULTS[fault](Client(enforce_csrf_checks=True))
    assert answer.status_code < 500
    written = log.getvalue()
    assert written.count("\n") <= 1, written[:2000]
    assert len(written) < 600


def test_what_kant_does_wrong_keeps_its_traceback(log):
    try:
        raise ValueError("of Kant")
    except ValueError:
        extra = {"status_code": 500}
        logging.getLogger("django.request").exception("Internal Server Error", extra=extra)
    assert "Traceback" in log.getvalue()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\n=1", "'\n=1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\uff20SUM(A1)", "'\uff20SUM(A1)"),
        ("-2.5", "-2.5"),
        ("+7", "+7"),
        ("-1e-3", "-1e-3"),
        (-2.5, -2.5),
        (None, None),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_cells_are_no_formulas(value, cell):
    assert plain_cell(value) == cell
    assert output.plain_cell(value) == cell  # of the command line, which cannot import ours


def test_an_export_has_no_formulas():
    out = io.StringIO()
    row = dict.fromkeys((*usage.MEASURES, usage.BORROWED, *usage.USE), -1.5)
    write_csv(out, *usage.as_table(["user"], [{"user": "=HYPERLINK(1)", **row}]))
    [found] = csv.DictReader(io.StringIO(out.getvalue()))
    assert found["user"] == "'=HYPERLINK(1)"
    assert set(found.values()) == {"'=HYPERLINK(1)", "-1.5"}
