"""The provider at which people sign in, from the KANT_OIDC_… settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from django.conf import settings

from tenants.oidc.groups import GroupFileError, Groups, read_groups

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID provider, Kant's registration as its client, and what its groups mean in Kant.

    `groups_claim` is "" when groups mean nothing.
    """

    issuer: str
    client_id: str
    client_secret: str
    scopes: tuple[str, ...]
    name: str
    username_claim: str
    groups_claim: str
    operator_groups: frozenset[str]
    groups: Groups


class SettingFault(NamedTuple):
    """What is wrong with the settings, and how to fix it."""

    text: str
    remedy: str


class NotConfigured(Exception):
    """The settings describe no usable provider."""

    def __init__(self, faults: list[SettingFault]) -> None:
        super().__init__(" ".join(f"{fault.text} {fault.remedy}" for fault in faults))


def is_configured() -> bool:
    return bool(settings.KANT_OIDC_ISSUER)


def provider() -> Provider:
    """Return the provider of the settings. Secret and groups are read from their files each time,
    so a change takes effect at the next sign-in. Raises NotConfigured."""
    found = faults()
    if found:
        raise NotConfigured(found)
    operator_groups = frozenset(settings.KANT_OIDC_OPERATOR_GROUPS)
    file = settings.KANT_OIDC_GROUPS_FILE
    return Provider(
        issuer=settings.KANT_OIDC_ISSUER,
        client_id=settings.KANT_OIDC_CLIENT_ID,
        client_secret=_secret(),
        scopes=tuple(settings.KANT_OIDC_SCOPES),
        name=settings.KANT_OIDC_NAME,
        username_claim=settings.KANT_OIDC_USERNAME_CLAIM,
        groups_claim=settings.KANT_OIDC_GROUPS_CLAIM if operator_groups or file else "",
        operator_groups=operator_groups,
        groups=read_groups(Path(file)) if file else {},
    )


def faults() -> list[SettingFault]:
    """Return what makes sign-in impossible with these settings."""
    return list(_faults())


def _faults() -> Iterator[SettingFault]:
    if not is_configured():
        given = [name for name in ("CLIENT_ID", "CLIENT_SECRET", "CLIENT_SECRET_FILE") if _of(name)]
        if given:
            yield SettingFault(
                f"KANT_OIDC_{given[0]} is set, but KANT_OIDC_ISSUER is not.",
                "Set KANT_OIDC_ISSUER to the address of the OpenID provider, or unset the others.",
            )
        return
    if not is_safe(settings.KANT_OIDC_ISSUER):
        yield SettingFault(
            f"KANT_OIDC_ISSUER is “{settings.KANT_OIDC_ISSUER}”.",
            "Set it to the provider's issuer: an address with https://, without query and "
            "fragment; http:// only on loopback.",
        )
    for name in ("CLIENT_ID", "NAME", "USERNAME_CLAIM"):
        if not _of(name):
            yield SettingFault(f"KANT_OIDC_{name} is empty.", "Set it.")
    yield from _secret_faults()
    if "openid" not in settings.KANT_OIDC_SCOPES:
        yield SettingFault(
            f"KANT_OIDC_SCOPES is “{' '.join(settings.KANT_OIDC_SCOPES)}”.",
            "Add openid, without which providers send no ID token.",
        )
    if not _of("GROUPS_CLAIM") and (_of("OPERATOR_GROUPS") or _of("GROUPS_FILE")):
        yield SettingFault(
            "KANT_OIDC_GROUPS_CLAIM is empty, but groups are mapped to rights.",
            "Set it to the name of the claim that lists a user's groups.",
        )
    if _of("GROUPS_FILE"):
        try:
            read_groups(Path(settings.KANT_OIDC_GROUPS_FILE))
        except GroupFileError as error:
            for text in error.faults:
                yield SettingFault(f"KANT_OIDC_GROUPS_FILE: {text}", error.remedy)


def _secret_faults() -> Iterator[SettingFault]:
    file = settings.KANT_OIDC_CLIENT_SECRET_FILE
    if bool(settings.KANT_OIDC_CLIENT_SECRET) == bool(file):
        number = "Both are set" if file else "Neither is set"
        yield SettingFault(
            f"KANT_OIDC_CLIENT_SECRET, KANT_OIDC_CLIENT_SECRET_FILE: {number}.",
            "Set exactly one of them to the secret that the provider issued for this client.",
        )
    elif file:
        try:
            empty = not _secret()
        except (OSError, UnicodeDecodeError) as error:
            yield SettingFault(
                f"KANT_OIDC_CLIENT_SECRET_FILE cannot be read: {error}.",
                "Name a file that Kant can read and that holds only the secret.",
            )
        else:
            if empty:
                yield SettingFault(f"{file} is empty.", "Write the client's secret into it.")


def _secret() -> str:
    file = settings.KANT_OIDC_CLIENT_SECRET_FILE
    return Path(file).read_text().strip() if file else settings.KANT_OIDC_CLIENT_SECRET


def _of(name: str) -> object:
    return getattr(settings, f"KANT_OIDC_{name}")


def is_safe(url: str) -> bool:
    """Return whether traffic to this address is protected: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    plain = parts.scheme == "http" and host in LOOPBACK
    return bool(host) and (plain or parts.scheme == "https") and not parts.fragment
