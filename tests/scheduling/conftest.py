import pytest

from scheduling.models import Job
from tests import organisation


@pytest.fixture
def org(db):
    return organisation.build()


@pytest.fixture
def eve(org):
    return org.client("eve")


@pytest.fixture
def meet_a_scheduler(monkeypatch):
    """`meet_a_scheduler(state)`: a scheduler brings a job to this state between the next read
    and write of it."""

    def meet(state):
        refresh, times = Job.refresh_from_db, []

        def refreshed(self, *args, **kwargs):
            refresh(self, *args, **kwargs)
            times.append(1)
            if len(times) == 1:  # between our read and our write
                Job.objects.filter(pk=self.pk).update(state=state, version=self.version + 1)

        monkeypatch.setattr(Job, "refresh_from_db", refreshed)

    return meet
