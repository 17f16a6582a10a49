"""Translate the provider's claims about a person into Kant's terms."""

import logging
from collections.abc import Mapping
from typing import Any

from tenants.oidc import failures
from tenants.oidc.config import Provider
from tenants.services.sign_in import Person, Rights, rights_of

log = logging.getLogger(__name__)


def person_of(provider: Provider, claims: Mapping[str, Any]) -> Person:
    """Return the person. Raises SignInFailed when the claim with the user name is missing."""
    name = claims.get(provider.username_claim)
    if not isinstance(name, str) or not name:
        raise failures.not_set_up(
            provider.name,
            f"claim {provider.username_claim!r} of sub {claims['sub']!r} is {name!r} in place of a "
            "user name; let the provider send it, or set KANT_OIDC_USERNAME_CLAIM to one of "
            f"{', '.join(sorted(claims))}",
        )
    return Person(
        issuer=provider.issuer,
        subject=claims["sub"],
        username=name,
        first_name=_text(claims, "given_name", 150),
        last_name=_text(claims, "family_name", 150),
        email=_text(claims, "email", 254),
    )


def groups_of(provider: Provider, claims: Mapping[str, Any]) -> Rights:
    """Return the rights that the groups give. Raises SignInFailed when the claim is not a list of
    names, or was too long to send: nobody should lose their roles because of that."""
    groups = claims.get(provider.groups_claim, []) if provider.groups_claim else []
    elsewhere = claims.get("_claim_names")
    if isinstance(elsewhere, dict) and provider.groups_claim in elsewhere:
        raise failures.not_set_up(
            provider.name,
            f"sub {claims['sub']!r} is in more groups than fit into a token; let the provider send "
            f"only those of this application as {provider.groups_claim!r}",
        )
    if isinstance(groups, str):
        groups = [groups]  # some providers send a single group like this
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise failures.not_set_up(
            provider.name, f"claim {provider.groups_claim!r} is {groups!r}, no list of names"
        )
    if provider.groups_claim and provider.groups_claim not in claims:
        log.warning(
            "%s sent no claim %r for sub %r: it may be in no group, or the claim has another name; "
            "there are %s",
            provider.issuer,
            provider.groups_claim,
            claims["sub"],
            ", ".join(sorted(claims)),
        )
    grants = ((g, one.tenant, one.role) for g, held in provider.groups.items() for one in held)
    return rights_of(groups, provider.operator_groups, grants)


def _text(claims: Mapping[str, Any], name: str, most: int) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) and len(value) <= most else ""
