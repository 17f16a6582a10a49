from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"

    def ready(self) -> None:
        from scheduling.queries.facts import Facts
        from tenants.facts import register

        register(Facts())
