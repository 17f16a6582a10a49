"""Expired sessions do not accumulate."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from kant.celery import app
from tenants.models import User

pytestmark = pytest.mark.django_db


def test_expired_sign_ins_are_forgotten_every_hour(client):
    user = User.objects.create_user("eve")
    client.force_login(user)
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))
    client.cookies.clear()
    client.force_login(user)
    assert Session.objects.count() == 2
    entry = app.conf.beat_schedule["sign-out"]
    assert entry["schedule"] == 3600
    app.loader.import_default_modules()  # as a worker does
    app.tasks[entry["task"]]()
    assert Session.objects.count() == 1
    assert client.get("/jobs/").status_code == 200
