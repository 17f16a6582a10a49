"""The Celery application and its one schedule: the ticks."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kant.settings")

app = Celery("kant")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
