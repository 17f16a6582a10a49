import pytest

from tests import organisation
from tests.webhooks.receiver import Receiver
from webhooks.models import Webhook


@pytest.fixture
def org(db):
    return organisation.build()


@pytest.fixture(autouse=True)
def _as_one_machine(settings):
    """Allow receivers on loopback, as in the embedded mode."""
    settings.EMBEDDED = True


@pytest.fixture
def receiver():
    with Receiver() as running:
        yield running


@pytest.fixture
def hook_at(now):
    """Create a webhook that was switched on before the test began."""

    def make(url, tenant=None, events=("job.started",), **more):
        more = {"name": "hook", "since": now, "pending_until": now, "maker_name": "ops", **more}
        return Webhook.objects.create(url=url, tenant=tenant, events=list(events), **more)

    return make
