"""Whether device drivers allow pods to be bound (binding conditions, docs/operating/devices.md)."""

from collections.abc import Iterable

from scheduling.kube.dra.facts import GivenDevice
from scheduling.session.devices.books import ClaimName, DeviceBooks


def is_conditional(given: Iterable[GivenDevice]) -> bool:
    """Whether pods are bound only once these devices are ready."""
    return any(each.ready_by for each in given)


def failure(books: DeviceBooks, names: Iterable[ClaimName]) -> str:
    """Return why devices of these claims will never be ready; "" = they still may be."""
    claims = (books.claims.get(name) for name in sorted(names))
    return next((f"Resource claim {c.name}: {c.failed}" for c in claims if c and c.failed), "")


def not_ready(books: DeviceBooks, names: Iterable[ClaimName]) -> str:
    """Return what is not ready among the devices of these claims; "" = nothing."""
    for name in sorted(names):
        claim = books.claims.get(name)
        if claim is None or claim.given is None:
            return f"Resource claim {name[1]}: its devices have not been seen yet"
        if claim.not_ready:
            return f"Resource claim {claim.name}: {', '.join(claim.not_ready)}"
    return failure(books, names)
