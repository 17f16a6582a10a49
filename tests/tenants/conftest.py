import pytest
from django.conf import settings

from tests import organisation

# Races need a database with several writers; `make test` runs them on PostgreSQL.
NEEDS_WRITERS = ["test_races.py", "test_lock_order.py"]
collect_ignore = NEEDS_WRITERS if "sqlite" in settings.DATABASES["default"]["ENGINE"] else []


@pytest.fixture
def org(db):
    return organisation.build()
