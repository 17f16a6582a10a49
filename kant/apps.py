import gc

from django.apps import AppConfig


class KantConfig(AppConfig):
    name = "kant"

    def ready(self) -> None:
        from kant import checks  # noqa: F401  registers the system checks

        gc.freeze()
