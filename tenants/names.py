"""Names that somebody gives, and what to say when nothing has that name."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Q, QuerySet

from tenants.models import GpuType, User
from tenants.permissions import access_of
from tenants.selectors import visible_tenants

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

    Viewer = User | AnonymousUser

LONGEST = 253  # longest name that a message repeats


@dataclass(frozen=True, slots=True)
class Names:
    """The names of all things of a kind that somebody may know of.

    `kind` follows “There is no” in messages. `sources`: querysets, each with the field that holds
    the name. `fixed`: names that no row has. `limited`: others may have more of them. `listed`:
    where REST lists them; "" = nowhere.
    """

    kind: str
    sources: tuple[tuple[QuerySet[Any], str], ...] = ()
    fixed: tuple[str, ...] = ()
    limited: bool = False
    listed: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.fixed or self.row(name) is not None

    def row(self, name: str) -> Any:
        """Return the first row of that name; None = there is none."""
        for rows, field in self.sources:
            if found := list(rows.order_by().filter(**{field: name})[:1]):
                return found[0]
        return None

    def none_such(self, name: str) -> str:
        """Return a sentence without its full stop; it suggests a known name that is close to the
        given one."""
        names = set(self.fixed)
        for rows, field in self.sources:
            names.update(rows.order_by().values_list(field, flat=True).distinct())
        seen = " that you may see" if self.limited else ""
        return f"There is no {self.kind} “{name[:LONGEST]}”{seen}{but(name, names)}"

    def refusal(self, name: str) -> str:
        """Return the same for REST, with the path that lists the names."""
        them = "yours" if self.limited else "them"
        listed = f" GET /api/v1/{self.listed} lists {them}." if self.listed else ""
        return f"{self.none_such(name)}.{listed}"


def but(name: str, names: Iterable[str | None]) -> str:
    """Return “, but there is …” with the closest of some names; "" when none is close. It continues
    a sentence that says that there is no such name."""
    given = name[:LONGEST].casefold()
    known = {each.casefold(): each for each in names if each}
    found = difflib.get_close_matches(given, known, n=1)
    if not found:  # a part may stand for the whole if it is unambiguous
        whole = [each for each in known if given in each]
        found = whole if len(whole) == 1 else []
    return f", but there is “{known[found[0]]}”" if found else ""


def tenant_names(user: "Viewer") -> Names:
    return Names("tenant", ((visible_tenants(user), "name"),), limited=True, listed="tenants")


def user_names(user: "Viewer") -> Names:
    """The user and the members of the tenants that the user may see; everybody for operators."""
    users, tenants = User.objects.all(), access_of(user).visible_tenants()
    if tenants is not None:
        users = users.filter(Q(pk=user.pk) | Q(memberships__tenant__in=tenants))
    return Names("user", ((users, "username"),), limited=True)


def gpu_type_names() -> Names:
    """The GPU types on which quota is given."""
    return Names("GPU type", ((GpuType.objects.all(), "name"),), listed="gpu-types")
