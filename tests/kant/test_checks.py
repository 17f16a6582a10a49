"""Settings that cannot work are refused with a remedy."""

import pytest
from django.core.checks import run_checks

from kant.checks import no_demo_accounts
from kant.demo.accounts import ACCOUNTS, DEMO_DOMAIN
from scheduling import compiled
from tenants.models import Tenant, User
from tenants.oidc.config import provider


def ids(but=("kant.I001",)):
    """Return the ids of failed checks, except that for the compiled core, which depends on the
    machine."""
    found = {problem.id for problem in run_checks() if problem.id.startswith("kant.")}
    return found.difference(but)


def test_the_embedded_defaults_are_legal(settings):
    assert ids() == set()


def test_an_interpreted_core_is_told_where_it_matters(settings, monkeypatch):
    monkeypatch.setattr(compiled, "in_use", lambda: False)
    assert ids(but=()) == set()
    settings.EMBEDDED = False
    assert "kant.I001" in ids(but=())
    monkeypatch.setattr(compiled, "in_use", lambda: True)
    assert "kant.I001" not in ids(but=())


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_several_processes_need_a_shared_database_and_broker(settings):
    settings.EMBEDDED = False
    settings.CELERY_BROKER_URL = "memory://localhost/"
    settings.DATABASES = {"default": {"ENGINE": "kant.sqlite3", "NAME": "x"}}
    assert ids() == {"kant.E001", "kant.E002"}


def test_a_shared_cache_with_a_broker_in_memory_loses_rings(settings):
    settings.CELERY_BROKER_URL = "memory://localhost/"
    settings.CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": "redis://localhost",
        }
    }
    assert ids() == {"kant.E003"}


def test_processes_do_not_make_a_key_each(settings):
    settings.SECRET_KEY = ""
    assert ids() == {"kant.E010"}


def test_a_sign_of_life_can_be_given(settings, tmp_path):
    settings.KANT_ALIVE_FILE = str(tmp_path / "alive")
    assert ids() == set()
    settings.KANT_ALIVE_FILE = str(tmp_path / "missing" / "alive")
    assert ids() == {"kant.E013"}


def test_jobs_are_kept_for_a_day_at_least(settings):
    settings.KANT_KEEP_DAYS = 0
    assert ids() == {"kant.E006"}


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_of_answers_to_check_is_between_0_and_1(settings, share):
    settings.KANT_CHECK_SHARE = share
    assert ids() == {"kant.E012"}


@pytest.fixture
def sso(settings):
    settings.KANT_OIDC_ISSUER = "https://id.example.com"
    settings.KANT_OIDC_CLIENT_ID, settings.KANT_OIDC_CLIENT_SECRET = "kant", "s"
    return settings


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ISSUER", "", "KANT_OIDC_CLIENT_ID is set, but KANT_OIDC_ISSUER is not"),
        ("ISSUER", "http://id.example.com", "KANT_OIDC_ISSUER is “http://id.example.com”"),
        ("CLIENT_ID", "", "KANT_OIDC_CLIENT_ID is empty"),
        ("CLIENT_SECRET", "", "Neither is set"),
        ("CLIENT_SECRET_FILE", "/etc/secret", "Both are set"),
        ("SCOPES", ["profile"], "KANT_OIDC_SCOPES is “profile”"),
        ("GROUPS_FILE", "/nowhere/groups.yaml", "/nowhere/groups.yaml: No such file"),
        ("TOKEN_DAYS", -1, "KANT_OIDC_TOKEN_DAYS is -1"),
    ],
)
def test_single_sign_on_that_cannot_work_is_refused(sso, name, value, told):
    assert ids() == set()
    setattr(sso, f"KANT_OIDC_{name}", value)
    found = [p for p in run_checks() if p.id in ("kant.E007", "kant.E008")]
    assert len(found) == 1
    assert told in found[0].msg
    assert found[0].hint


def test_no_sign_in_at_all_is_refused(sso):
    sso.KANT_PASSWORD_SIGN_IN = False
    assert ids() == set()
    for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET"):
        setattr(sso, f"KANT_OIDC_{name}", "")
    assert ids() == {"kant.E009"}


def test_the_secret_may_stand_in_a_file(sso, tmp_path):
    sso.KANT_OIDC_CLIENT_SECRET = ""
    file = tmp_path / "secret"
    sso.KANT_OIDC_CLIENT_SECRET_FILE = str(file)
    assert [p.hint for p in run_checks() if p.id == "kant.E007"] == [
        "Name a file that Kant can read and that holds only the secret."
    ]
    file.write_text("s3cret\n")
    assert ids() == set()
    assert provider().client_secret == "s3cret"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["does not hold groups"]),
        ("gpu: [", ["is not YAML"]),
        ("gpu: engineer", ["line 1: group “gpu” has no {tenant: role}"]),
        ("gpu:\n  vision: enginer", ["line 2: “enginer” is not a role, in tenant “vision”"]),
        ("a: {x: viewer}\nb: {x: viewer}\na: {y: viewer}", ["line 3: “a” appears here a second"]),
        ("a: {x: nobody}\nb: {x: [1]}", ["line 1: “nobody”", "line 2: The value"]),
    ],
)
def test_a_wrong_file_of_groups_is_told_by_line(sso, tmp_path, text, told):
    file = tmp_path / "groups.yaml"
    file.write_text(text)
    sso.KANT_OIDC_GROUPS_FILE = str(file)
    found = [p.msg for p in run_checks() if p.id == "kant.E007"]
    assert len(found) == len(told)
    assert all(part in message for part, message in zip(told, found, strict=True))


@pytest.mark.django_db
def test_a_tenant_of_the_file_of_groups_that_is_not_there_is_a_warning(sso, tmp_path):
    file = tmp_path / "groups.yaml"
    file.write_text("gpu:\n  vision: engineer\n  visoin: viewer\n")
    sso.KANT_OIDC_GROUPS_FILE = str(file)
    Tenant.objects.create(name="vision")
    found = [p for p in run_checks() if p.id == "kant.W001"]
    assert [("line 3" in p.msg, "“visoin”" in p.msg) for p in found] == [(True, True)]


def test_demo_accounts_are_never_reachable_from_outside(settings):
    settings.ALLOWED_HOSTS = ["localhost", "kant.example.org"]
    found = [p for p in run_checks() if p.id == "kant.E004"]
    assert len(found) == 1
    assert "kant.example.org" in found[0].msg


@pytest.mark.django_db
def test_demo_accounts_in_a_copied_database_are_found(settings):
    name = ACCOUNTS[0].username
    user = User.objects.create_user(name, f"{name}@{DEMO_DOMAIN}", "x")
    assert no_demo_accounts(databases=["default"]) == []
    settings.EMBEDDED = False
    assert [p.id for p in no_demo_accounts(databases=["default"])] == ["kant.E005"]
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert no_demo_accounts(databases=["default"]) == []
