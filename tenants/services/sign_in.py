"""Map a person at the OpenID provider to a user of Kant, with the rights that their groups give."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from tenants.errors import Conflict, Invalid, NotAllowed
from tenants.models import Identity, Membership, Tenant, User
from tenants.permissions import strongest
from tenants.services import audit, locks
from tenants.services.members import tell
from tenants.services.transactions import unit_of_work

log = logging.getLogger(__name__)

MOST_NAME = 150  # characters of a user name


@dataclass(frozen=True, slots=True)
class Person:
    """What the provider says about a person; empty where it says nothing."""

    issuer: str
    subject: str
    username: str
    first_name: str
    last_name: str
    email: str


@dataclass(frozen=True, slots=True)
class Rights:
    """What groups of the provider give: tenant by name → (role, group), and the group that makes an
    operator ("" = none). `groups`: all groups, since queues may name them."""

    roles: Mapping[str, tuple[str, str]]
    operator_group: str
    groups: tuple[str, ...] = ()


def rights_of(
    groups: Iterable[str], operator_groups: frozenset[str], grants: Iterable[tuple[str, str, str]]
) -> Rights:
    """Return the rights of these groups. `grants` are (group, tenant, role); the strongest role per
    tenant counts."""
    held = frozenset(groups)
    roles: dict[str, tuple[str, str]] = {}
    for group, tenant, role in grants:
        if group not in held:
            continue
        if tenant not in roles or strongest((roles[tenant][0], role)) != roles[tenant][0]:
            roles[tenant] = (role, group)
    return Rights(roles, min(held & operator_groups, default=""), tuple(sorted(held)))


def sign_in(person: Person, rights: Rights) -> User:
    """Return a person's account, created at the first sign-in, with the rights that their groups
    give now.

    These replace the rights that groups gave earlier; rights given by hand stay. Raises Invalid
    (unusable user name), Conflict (the name belongs to another account), NotAllowed (the account is
    inactive).
    """
    with unit_of_work(dry_run=False):
        # This locks the row: concurrent sign-ins follow each other.
        identity = _identity(person) or _new_identity(person)
        user = identity.user
        if not user.is_active:
            raise NotAllowed(
                f"Your account “{user.username}” is disabled. Ask an operator of Kant."
            )
        for name in ("first_name", "last_name", "email"):
            setattr(user, name, getattr(person, name) or getattr(user, name))
        _renew_operator(user, identity, rights.operator_group)
        user.save(update_fields=["first_name", "last_name", "email", "is_operator"])
        identity.signed_in_at = timezone.now()
        identity.groups = list(rights.groups)
        identity.save(update_fields=["operator_by_group", "signed_in_at", "groups"])
        _renew_memberships(user, person.issuer, rights.roles)
    return user


def _identity(person: Person) -> Identity | None:
    return (
        Identity.objects.select_for_update()
        .select_related("user")
        .filter(issuer=person.issuer, subject=person.subject)
        .first()
    )


def _new_identity(person: Person) -> Identity:
    name = person.username
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError:
        name = ""
    if not 0 < len(name) <= MOST_NAME:
        raise Invalid(
            f"“{person.username}” cannot be a Kant user name: those have at most {MOST_NAME} "
            "letters, digits and @.+-_. Ask an operator to use another claim for user names."
        )
    # Case-insensitive: nobody may pass for somebody else.
    taken = User.objects.filter(username__iexact=name).first()
    try:
        if taken is None:
            with transaction.atomic():
                user = User(username=name)
                user.set_unusable_password()
                user.save(force_insert=True)
                return Identity.objects.create(
                    user=user, issuer=person.issuer, subject=person.subject
                )
    except IntegrityError:
        # The same person in another tab, or another person of the same name, came first.
        if identity := _identity(person):
            return identity
    raise Conflict(
        f"Kant already has an account “{name}” that is not linked to your identity at "
        f"{person.issuer}. If it is yours, ask an operator to enter that issuer and the subject "
        f"“{person.subject}” for this account in /admin/; if not, one of the two needs another "
        "name."
    )


def _renew_operator(user: User, identity: Identity, group: str) -> None:
    if bool(group) == user.is_operator or (user.is_operator and not identity.operator_by_group):
        return
    before = {"is_operator": user.is_operator}
    user.is_operator = identity.operator_by_group = bool(group)
    audit.record(
        user,
        "user.changed",
        user.username,
        before=before,
        after={"is_operator": user.is_operator},
        reason=_reason(identity.issuer, group),
        source=audit.SIGN_IN,
    )


def _renew_memberships(user: User, issuer: str, roles: Mapping[str, tuple[str, str]]) -> None:
    tenants = {t.name: t for t in Tenant.objects.filter(name__in=roles)}
    mine = Membership.objects.filter(user=user).select_related("tenant")
    locks.keep(Tenant, {*mine.values_list("tenant", flat=True), *(t.pk for t in tenants.values())})
    held = {member.tenant.name: member for member in mine}
    for name in sorted(roles.keys() - tenants.keys()):
        log.warning("groups give a role in “%s”, but there is no such tenant", name)
    for name, member in held.items():
        if member.by_group and name not in roles:
            why = _reason(issuer, "")
            tell(user, "member.removed", member.tenant, user, member, None, why, audit.SIGN_IN)
            member.delete()
    for name, tenant in tenants.items():
        role, group = roles[name]
        before = held.get(name)
        if before is not None and (not before.by_group or before.role == role):
            continue
        after = Membership(user=user, tenant=tenant, role=role, by_group=True)
        why = _reason(issuer, group)
        tell(user, "member.set", tenant, user, before, after, why, audit.SIGN_IN)
        if before is not None:
            after.pk, after.created_at = before.pk, before.created_at
        after.save()


def _reason(issuer: str, group: str) -> str:
    if group:
        return f"In the group “{group}” at {issuer}."
    return f"No longer in a group at {issuer} that gives this role."
