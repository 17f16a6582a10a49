"""One migration per app creates new databases; the migrations that it replaces update old ones."""

from django.apps import apps
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState


def test_both_ways_lead_to_the_models():
    models = ProjectState.from_apps(apps)
    for replace in (True, False):
        loader = MigrationLoader(None, replace_migrations=replace)
        made = loader.project_state()
        assert MigrationAutodetector(made, models).changes(loader.graph) == {}
