"""Names that somebody gives for things there are, and what is said of one that names nothing."""

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

LONGEST = 253  # of a name that is repeated


@dataclass(frozen=True, slots=True)
class Names:
    """The names of all things of a kind that somebody may know of.

    `kind` goes on after “There is no”. `sources`: rows, and the field of theirs that has the name.
    `fixed`: names that stand in no row. `limited`: there may be more, of others. `listed`: where
    REST lists them, "" = nowhere.
    """

    kind: str
    sources: tuple[tuple[QuerySet[Any], str], ...] = ()
    fixed: tuple[str, ...] = ()
    limited: bool = False
    listed: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.fixed or self.row(name) is not None

    def row(self, name: str) -> Any:
        """The first row of that name, None = there is none."""
        for rows, field in self.sources:
            if found := list(rows.order_by().filter(**{field: name})[:1]):
                return found[0]
        return None

    def none_such(self, name: str) -> str:
        """A sentence without its full stop, with the name that was meant where one is near."""
        names = set(self.fixed)
        for rows, field in self.sources:
            names.update(rows.order_by().values_list(field, flat=True).distinct())
        seen = " that you may see" if self.limited else ""
        return f"There is no {self.kind} “{name[:LONGEST]}”{seen}{but(name, names)}"

    def refusal(self, name: str) -> str:
        """The same for REST: with where they are listed."""
        them = "yours" if self.limited else "them"
        listed = f" GET /api/v1/{self.listed} lists {them}." if self.listed else ""
        return f"{self.none_such(name)}.{listed}"


def but(name: str, names: Iterable[str | None]) -> str:
    """“, but there is …” of the nearest of some names, "" where none is near; goes on after a
    sentence that says that there is no such name."""
    given = name[:LONGEST].casefold()
    known = {each.casefold(): each for each in names if each}
    found = difflib.get_close_matches(given, known, n=1)
    if not found:  # a part may stand for the whole where it says which
        whole = [each for each in known if given in each]
        found = whole if len(whole) == 1 else []
    return f", but there is “{known[found[0]]}”" if found else ""


def tenant_names(user: "Viewer") -> Names:
    return Names("tenant", ((visible_tenants(user), "name"),), limited=True, listed="tenants")


def user_names(user: "Viewer") -> Names:
    """Oneself and the members of the tenants that one may see; all for operators."""
    users, tenants = User.objects.all(), access_of(user).visible_tenants()
    if tenants is not None:
        users = users.filter(Q(pk=user.pk) | Q(memberships__tenant__in=tenants))
    return Names("user", ((users, "username"),), limited=True)


def gpu_type_names() -> Names:
    """Those that quota is given on."""
    return Names("GPU type", ((GpuType.objects.all(), "name"),), listed="gpu-types")
