import pytest
from django.conf import settings

from tests import organisation

# Races need a database with several writers; `make test` runs them on PostgreSQL.
collect_ignore = ["test_races.py"] if "sqlite" in settings.DATABASES["default"]["ENGINE"] else []


@pytest.fixture
def org(db):
    return organisation.build()
