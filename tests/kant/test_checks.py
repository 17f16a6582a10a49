"""Settings that cannot work are refused with a remedy."""

import pytest
from django.core.checks import run_checks

from kant.checks import no_demo_accounts
from kant.demo import ACCOUNTS, DEMO_DOMAIN
from tenants.models import User


def ids():
    return {problem.id for problem in run_checks() if problem.id.startswith("kant.")}


def test_the_embedded_defaults_are_legal(settings):
    assert ids() == set()


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


def test_jobs_are_kept_for_a_day_at_least(settings):
    settings.KANT_KEEP_DAYS = 0
    assert ids() == {"kant.E006"}


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
