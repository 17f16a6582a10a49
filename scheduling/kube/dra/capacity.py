"""How much a request consumes of a device that several claims may share. Pure.

As kube-scheduler 1.36 (dynamic-resource-allocation/structured, consumable capacity), in exact
numbers. A requested amount is rounded up to what the driver allows; for a capacity that it does not
name, a claim takes the default, or all if there is none.
"""

from collections.abc import Mapping
from fractions import Fraction

from scheduling.kube.dra.facts import Amounts, Capacity, DeviceFacts, RequestPolicy

NOTHING_USED: Mapping[str, Fraction] = {}


def consumed_of(device: DeviceFacts, asked: Amounts) -> Amounts | None:
    """Return the amount of each capacity that a request consumes.

    None = the device never has that much, or does not hand out such an amount.
    """
    wanted = dict(asked)
    if not wanted.keys() <= device.capacity.keys():
        return None
    found = []
    for name in sorted(device.capacity):
        capacity = device.capacity[name]
        amount = _taken_of(capacity, wanted.get(name))
        if amount > capacity.value or not _is_allowed(amount, capacity.policy):
            return None
        found.append((name, amount))
    return tuple(found)


def is_left(device: DeviceFacts, consumed: Amounts, used: Mapping[str, Fraction]) -> bool:
    """Whether enough of each capacity is left when others use `used`."""
    return all(
        used.get(name, Fraction(0)) + amount <= device.capacity[name].value
        for name, amount in consumed
    )


def part_of(device: DeviceFacts, consumed: Amounts) -> Fraction:
    """Return the consumed part of the device: the largest part among its capacities."""
    capacities = ((device.capacity[name].value, amount) for name, amount in consumed)
    return max((amount / value for value, amount in capacities if value), default=Fraction(1))


def _taken_of(capacity: Capacity, wanted: Fraction | None) -> Fraction:
    policy = capacity.policy
    if wanted is None:
        default = policy.default if policy is not None else None
        return capacity.value if default is None else default
    if policy is None:
        return wanted
    if policy.least is not None:
        if wanted <= policy.least or not policy.step:
            return max(wanted, policy.least)
        steps = -((policy.least - wanted) // policy.step)
        return policy.least + steps * policy.step
    return min((value for value in policy.values if value >= wanted), default=wanted)


def _is_allowed(amount: Fraction, policy: RequestPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return True
    if policy.least is not None or policy.most is not None:
        return policy.most is None or amount <= policy.most
    return not policy.values or amount in policy.values
