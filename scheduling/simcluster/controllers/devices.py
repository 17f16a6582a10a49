"""The device manager of a node: which pod uses how much of which GPU."""

import json
from collections.abc import Mapping
from typing import Any

from scheduling.simcluster.controllers.predicates import Rejection
from scheduling.simcluster.objects.quantities import Requests

GPU = "nvidia.com/gpu"
GPU_MILLI = "kant.io/gpu-milli"
DEVICES_ANNOTATION = "kant.io/devices"
MILLI_ANNOTATION = "kant.io/milli"
UNHEALTHY_GPUS = "kant.io/unhealthy-gpus"
UNHEALTHY_NICS = "kant.io/unhealthy-nics"

WHOLE = 1000


def refused(why: str) -> Rejection:
    return Rejection(
        "UnexpectedAdmissionError", f"Allocate failed due to {why}, which is unexpected"
    )


def indices(text: str) -> tuple[int, ...]:
    """Return the device indices of an annotation.

    Raises:
        ValueError: it is not a JSON list of distinct non-negative integers.
    """
    value = json.loads(text)
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise ValueError(f"{text} is not a JSON list of device indices")
    if len(set(value)) != len(value):
        raise ValueError(f"{text} names a device twice")
    return tuple(value)


def chosen(annotations: Mapping[str, str]) -> tuple[tuple[int, ...], int] | None:
    """Return the devices that the Binding names and the milli of each; None if it names none.

    Raises:
        ValueError: an annotation does not parse.
    """
    text = annotations.get(DEVICES_ANNOTATION)
    if text is None:
        return None
    milli = int(annotations.get(MILLI_ANNOTATION, WHOLE))
    if not 0 < milli <= WHOLE:
        raise ValueError(f"{MILLI_ANNOTATION} {milli} is not between 1 and {WHOLE}")
    return indices(text), milli


class DeviceManager:
    """The GPUs of one node; `used[i]`: the milli of device i that running pods hold."""

    __slots__ = ("held", "unhealthy", "used")

    def __init__(self) -> None:
        self.used: list[int] = []
        self.unhealthy: frozenset[int] = frozenset()
        self.held: dict[str, tuple[tuple[int, ...], int]] = {}

    def describe(self, count: int, unhealthy: frozenset[int]) -> None:
        """Take over what the node object says of its devices."""
        self.unhealthy = unhealthy
        self.used.extend([0] * (count - len(self.used)))

    def allocate(
        self, uid: str, requests: Requests, annotations: Mapping[str, Any]
    ) -> Rejection | None:
        """Give the pod the devices that its Binding names, otherwise the last free healthy ones."""
        whole, milli = requests.get(GPU, 0), requests.get(GPU_MILLI, 0)
        if not whole and not milli:
            return None
        try:
            named = chosen(annotations)
        except ValueError as error:
            return refused(f"{DEVICES_ANNOTATION}: {error}")
        if named is None:
            return self._pick(uid, whole, milli)
        devices, each = named
        asked = whole * WHOLE or milli
        if len(devices) * each != asked or (whole and each != WHOLE):
            return refused(
                f"{DEVICES_ANNOTATION} {list(devices)} of {each} milli each not being the "
                f"{asked} GPU-milli that the pod requests"
            )
        for device in devices:
            if device >= len(self.used):
                return refused(f"device {device} not existing on the node")
            if device in self.unhealthy:
                return refused(f"device {device} being unhealthy")
            if self.used[device] + each > WHOLE:
                return refused(
                    f"device {device} being in use: {self.used[device]} of {WHOLE} milli are "
                    f"held, {each} requested"
                )
        self._take(uid, devices, each)
        return None

    def _pick(self, uid: str, whole: int, milli: int) -> Rejection | None:
        count, each = (whole, WHOLE) if whole else (1, milli)
        good = [
            i
            for i, used in enumerate(self.used)
            if i not in self.unhealthy and used + each <= WHOLE
        ]
        if len(good) < count:
            return refused(
                f"requested number of devices unavailable for {GPU if whole else GPU_MILLI}. "
                f"Requested: {count}, Available: {len(good)}"
            )
        # Fullest first, to keep whole devices whole. Then last first: a scheduler that names
        # devices does not know of these pods, and names the first ones that it believes free.
        good.sort(key=lambda i: (-self.used[i], -i))
        self._take(uid, tuple(sorted(good[:count])), each)
        return None

    def _take(self, uid: str, devices: tuple[int, ...], milli: int) -> None:
        for device in devices:
            self.used[device] += milli
        self.held[uid] = (devices, milli)

    def free(self, uid: str) -> None:
        devices, milli = self.held.pop(uid, ((), 0))
        for device in devices:
            self.used[device] -= milli
