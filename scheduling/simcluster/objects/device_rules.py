"""Rules of device claims (resource.k8s.io/v1): what their status may say."""

from scheduling.simcluster.objects.meta import Causes, Obj
from scheduling.simcluster.objects.status import forbidden_field, invalid_value

MOST_CONSUMERS = 256


def claim_changes(new: Obj, old: Obj) -> Causes:
    if new.get("spec") == old.get("spec"):
        return []
    return [invalid_value("spec", new.get("spec"), "field is immutable")]


def drop_given_back(new: Obj, old: Obj) -> None:
    """Remove the device statuses of drivers together with the devices."""
    now = new.get("status") or {}
    gone = _named(old.get("status") or {}) - _named(now)
    if gone and now.get("devices"):
        now["devices"] = [each for each in now["devices"] if _name_of(each) not in gone]
        if not now["devices"]:
            del now["devices"]


def _named(status: Obj) -> set[tuple[str, ...]]:
    """Return the devices that a claim has."""
    found = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    return set(map(_name_of, found))


def _name_of(device: Obj) -> tuple[str, ...]:
    return tuple(device.get(field, "") for field in ("driver", "pool", "device", "shareID"))


def status_changes(new: Obj, old: Obj) -> Causes:
    """Check a status: a claim is allocated once, and can be reserved only while it is allocated."""
    now, before = new.get("status") or {}, old.get("status") or {}
    allocation, consumers = now.get("allocation"), now.get("reservedFor") or []
    causes: Causes = []
    if before.get("allocation") and allocation and allocation != before["allocation"]:
        causes.append(invalid_value("status.allocation", allocation, "field is immutable"))
    if consumers and not allocation:
        why = "may not be specified when `allocated` is not set"
        causes.append(forbidden_field("status.reservedFor", why))
    known = {each["uid"] for each in before.get("reservedFor") or ()}
    if old["metadata"].get("deletionTimestamp"):
        new_ones = [each for each in consumers if each["uid"] not in known]
        if new_ones:
            why = (
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp`"
            )
            causes.append(forbidden_field("status.reservedFor", f"{why} are set"))
        if allocation and not before.get("allocation"):
            why = "a claim with a deletion timestamp may not be allocated"
            causes.append(forbidden_field("status.allocation", why))
    if len(consumers) > MOST_CONSUMERS:
        why = f"must have at most {MOST_CONSUMERS} items"
        causes.append(invalid_value("status.reservedFor", len(consumers), why))
    return causes
