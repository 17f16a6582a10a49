from django.apps import AppConfig


class KantConfig(AppConfig):
    name = "kant"
