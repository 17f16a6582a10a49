import pytest

from tests import organisation


@pytest.fixture
def org(db):
    return organisation.build()
