"""System checks: they refuse combinations of settings that cannot work, each with its remedy."""

import os
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import DatabaseError

from kant.demo.accounts import DEMO_DOMAIN
from metrics.gpu_use.prometheus import wrong_address
from scheduling import compiled
from tenants.models import Tenant, User
from tenants.oidc import config as oidc
from tenants.oidc.groups import read_groups

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "testserver"})


@register()
def backends(**_: Any) -> list[CheckMessage]:
    """All processes must be able to reach the backends that they share."""
    found: list[CheckMessage] = []
    memory = settings.CELERY_BROKER_URL.startswith("memory:")
    sqlite = settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
    if not settings.EMBEDDED and memory:
        found.append(
            Error(
                "The broker is in memory, but Kant runs as several processes.",
                hint="Set REDIS_URL or CELERY_BROKER_URL, e.g. redis://localhost:6379/0.",
                id="kant.E001",
            )
        )
    if not settings.EMBEDDED and sqlite:
        found.append(
            Error(
                "The database is SQLite, but Kant runs as several processes.",
                hint="Set DATABASE_URL, e.g. postgres://kant@localhost/kant.",
                id="kant.E002",
            )
        )
    if memory and settings.CACHES["default"]["BACKEND"].endswith("RedisCache"):
        found.append(
            Error(
                "The cache is Redis, but the broker is in memory.",
                hint="Leave CELERY_BROKER_URL unset to use Redis for both.",
                id="kant.E003",
            )
        )
    return found


@register()
def machine_code(**_: Any) -> list[CheckMessage]:
    """Report an interpreted core: in a large cluster the core takes most of a scheduler's time."""
    if settings.EMBEDDED or compiled.in_use():
        return []
    return [
        Info(
            "The decision core is interpreted: decisions take three times the CPU time.",
            hint="Compile it with `python -m scheduling.compile_core`, or install the wheel.",
            id="kant.I001",
        )
    ]


@register()
def secret_key(**_: Any) -> list[CheckMessage]:
    """Require a secret key: otherwise each process has its own and rejects the others' sessions."""
    try:
        settings.SECRET_KEY  # noqa: B018  Django refuses an empty one when it is asked for
    except ImproperlyConfigured:
        return [
            Error(
                "KANT_SECRET_KEY is not set; Kant signs sessions with it.",
                hint="Set it to a long random text, the same for all processes.",
                id="kant.E010",
            )
        ]
    return []


@register()
def proxies(**_: Any) -> list[CheckMessage]:
    """Refuse unreadable networks.

    Kant would trust no proxy then, and count all clients as one address.
    """
    found: list[CheckMessage] = []
    for each in settings.KANT_TRUSTED_PROXIES:
        try:
            ip_network(each, strict=False)
        except ValueError:
            found.append(
                Error(
                    f"KANT_TRUSTED_PROXIES: “{each}” is neither an address nor a network.",
                    hint="Give addresses or networks separated by commas, e.g. "
                    "10.0.0.7,10.0.0.0/16.",
                    id="kant.E011",
                )
            )
    return found


@register()
def keeping(**_: Any) -> list[CheckMessage]:
    """Require at least a day: otherwise jobs are gone before anybody has looked at them."""
    if settings.KANT_KEEP_DAYS >= 1:
        return []
    return [
        Error(
            f"KANT_KEEP_DAYS is {settings.KANT_KEEP_DAYS}: jobs would be deleted as soon as they "
            "end.",
            hint="Set it to the number of days to keep jobs after they end, at least 1.",
            id="kant.E006",
        )
    ]


@register()
def core_checks(**_: Any) -> list[CheckMessage]:
    """Refuse an invalid share, with which no scheduler could start."""
    if 0 <= settings.KANT_CHECK_SHARE <= 1:
        return []
    return [
        Error(
            f"KANT_CHECK_SHARE is {settings.KANT_CHECK_SHARE:g}, which is not a share.",
            hint="Set it to a number from 0 (check no remembered answer) to 1 (check all).",
            id="kant.E012",
        )
    ]


@register()
def single_sign_on(**_: Any) -> list[CheckMessage]:
    """Refuse settings with which sign-in by the provider would fail for everybody."""
    found: list[CheckMessage] = [
        Error(fault.text, hint=fault.remedy, id="kant.E007") for fault in oidc.faults()
    ]
    if settings.KANT_OIDC_TOKEN_DAYS < 0:
        found.append(
            Error(
                f"KANT_OIDC_TOKEN_DAYS is {settings.KANT_OIDC_TOKEN_DAYS}.",
                hint="Set it to a number of days, or to 0 for no limit.",
                id="kant.E008",
            )
        )
    if not settings.KANT_PASSWORD_SIGN_IN and not oidc.is_configured():
        found.append(
            Error(
                "KANT_PASSWORD_SIGN_IN is off, and there is no OpenID provider: nobody could sign "
                "in.",
                hint="Set KANT_OIDC_ISSUER and the other KANT_OIDC_ variables, or unset "
                "KANT_PASSWORD_SIGN_IN.",
                id="kant.E009",
            )
        )
    if not found and settings.KANT_OIDC_GROUPS_FILE:
        found += _unknown_tenants()
    return found


def _unknown_tenants() -> list[CheckMessage]:
    """Warn of unknown tenants; only a warning, as groups may be written before tenants exist."""
    path = Path(settings.KANT_OIDC_GROUPS_FILE)
    try:
        if Tenant._meta.db_table not in connections["default"].introspection.table_names():
            return []
        known = set(Tenant.objects.values_list("name", flat=True))
    except DatabaseError:
        return []
    return [
        Warning(
            f"KANT_OIDC_GROUPS_FILE: {path}, line {granted.line}: group “{group}” gives the role "
            f"{granted.role} in tenant “{granted.tenant}”, which does not exist.",
            hint="Correct the name, or create the tenant.",
            id="kant.W001",
        )
        for group, roles in read_groups(path).items()
        for granted in roles
        if granted.tenant not in known
    ]


@register()
def webhook_networks(**_: Any) -> list[CheckMessage]:
    """Refuse settings with which every webhook delivery would fail."""
    found: list[CheckMessage] = []
    for text in settings.KANT_WEBHOOK_NETWORKS:
        try:
            ip_network(text)
        except ValueError as error:
            found.append(
                Error(
                    f"KANT_WEBHOOK_NETWORKS: {error}.",
                    hint="Give networks separated by commas, e.g. 10.1.0.0/16,fd00:1::/32.",
                    id="kant.E014",
                )
            )
    address = settings.KANT_PUBLIC_URL
    if address and not address.startswith(("https://", "http://")):
        found.append(
            Error(
                f"KANT_PUBLIC_URL is {address}, which is not the address of a site.",
                hint="Give the address that users open, e.g. https://kant.example.com.",
                id="kant.E015",
            )
        )
    return found


@register()
def prometheus(**_: Any) -> list[CheckMessage]:
    """Refuse an address of Prometheus from which nothing could be read."""
    if not settings.KANT_PROMETHEUS or not (why := wrong_address(settings.KANT_PROMETHEUS)):
        return []
    return [
        Error(
            f"KANT_PROMETHEUS {why}.",
            hint="Write the address of the site, e.g. http://prometheus.monitoring:9090.",
            id="kant.E016",
        )
    ]


@register()
def sign_of_life(**_: Any) -> list[CheckMessage]:
    """Require a writable file: otherwise a probe would restart the scheduler again and again."""
    path = settings.KANT_ALIVE_FILE
    if not path or os.access(Path(path).parent, os.W_OK):
        return []
    return [
        Error(
            f"KANT_ALIVE_FILE: {path} cannot be written.",
            hint="Name a file in a folder that exists and is writable.",
            id="kant.E013",
        )
    ]


@register()
def loopback_only(**_: Any) -> list[CheckMessage]:
    """Allow only local hosts in embedded mode: its demo accounts have known passwords."""
    public = [host for host in settings.ALLOWED_HOSTS if host not in LOOPBACK]
    if not settings.EMBEDDED or not public:
        return []
    return [
        Error(
            f"The embedded mode, with its demo accounts, would answer for {', '.join(public)}.",
            hint="Unset KANT_ALLOWED_HOSTS, or set KANT_EMBEDDED=false and configure a database "
            "and a broker.",
            id="kant.E004",
        )
    ]


@register(Tags.database)
def no_demo_accounts(
    *_: Any, databases: Sequence[str] | None = None, **__: Any
) -> list[CheckMessage]:
    """Refuse active demo accounts outside embedded mode, e.g. from a copied database."""
    if settings.EMBEDDED or not databases or "default" not in databases:
        return []
    try:
        if User._meta.db_table not in connections["default"].introspection.table_names():
            return []
        names = list(
            User.objects.filter(is_active=True, email__endswith=f"@{DEMO_DOMAIN}").values_list(
                "username", flat=True
            )
        )
    except DatabaseError:
        return []
    if not names:
        return []
    return [
        Error(
            f"Demo accounts with known passwords are active: {', '.join(sorted(names))}.",
            hint="Deactivate or delete them; they are for the embedded mode only.",
            id="kant.E005",
        )
    ]
