"""A study's processes are found whatever the current folder is."""

import pytest
from django.db import connection

from metrics.benches import load, stage

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_cluster_and_scheduler_start_from_any_folder(tmp_path, monkeypatch):
    if connection.vendor != "sqlite":
        pytest.skip("a bench makes a SQLite database of its own")
    stage.inventory(tmp_path / "fleet.yaml", 2)
    monkeypatch.chdir(tmp_path)
    assert load.run("fleet.yaml")["nodes"] == 2
