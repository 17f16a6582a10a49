"""The output of a simulated container: computed from its pod and the pod's times, never stored."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, overload

from scheduling.simcluster.controllers.devices import (
    DEVICES_ANNOTATION,
    GPU,
    GPU_MILLI,
    MILLI_ANNOTATION,
    WHOLE,
    indices,
)
from scheduling.simcluster.objects.meta import seconds
from scheduling.simcluster.objects.store import Obj

HEARTBEAT_S = 10.0
NICS_ANNOTATION = "kant.io/nics"


class LogLine(NamedTuple):
    """A line of a log; `at` in seconds since the epoch."""

    at: float
    text: str


class PodLog(Sequence[LogLine]):
    """The lines of one container until `now`, oldest first.

    They are what it printed at its start, a heartbeat every HEARTBEAT_S, and its exit code. `state`
    is the container's state in the pod's status; it has to be running or terminated.
    """

    def __init__(self, pod: Obj, container: str, state: Obj, now: float) -> None:
        end = state.get("terminated")
        self.ended = end is not None
        self._started = seconds((end or state["running"])["startedAt"])
        self._until = seconds(end["finishedAt"]) if end else now
        self._head = _beginning(pod, container)
        self._beats = max(0, int((self._until - self._started) // HEARTBEAT_S))
        # When a machine goes down, its containers print no last words.
        self._last = (
            [f"ended with exit code {end['exitCode']}"]
            if end and end["reason"] != "ContainerStatusUnknown"
            else []
        )

    @property
    def next_beat(self) -> float:
        """When the next heartbeat is due, in seconds since the epoch."""
        return self._started + (self._beats + 1) * HEARTBEAT_S

    def __len__(self) -> int:
        return len(self._head) + self._beats + len(self._last)

    @overload
    def __getitem__(self, index: int) -> LogLine: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogLine]: ...
    def __getitem__(self, index: int | slice) -> LogLine | list[LogLine]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index < len(self._head):
            return LogLine(self._started, self._head[index])
        beat = index - len(self._head) + 1
        if beat > self._beats:
            return LogLine(self._until, self._last[beat - self._beats - 1])
        after = beat * HEARTBEAT_S
        return LogLine(self._started + after, f"step {beat}, {after:.0f} s since the start")


def _beginning(pod: Obj, container: str) -> list[str]:
    every = (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ()))
    spec = next(c for c in every if c["name"] == container)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    lines = [f"started {container} of {name} on {node}, image {spec['image']}", _devices(pod, spec)]
    env = {each["name"]: each.get("value", "") for each in spec.get("env") or ()}
    if "KANT_RANK" in env:
        lines.append(
            f"rank {env['KANT_RANK']} of {env.get('KANT_WORLD_SIZE')}, meets the others at "
            f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}"
        )
    return lines


def _devices(pod: Obj, spec: Obj) -> str:
    notes = pod["metadata"].get("annotations") or {}
    if DEVICES_ANNOTATION in notes:
        milli = int(notes.get(MILLI_ANNOTATION, WHOLE))
        share = "" if milli == WHOLE else f" ({milli} of {WHOLE} milli of each)"
        found = f"GPUs {_listed(notes[DEVICES_ANNOTATION])}{share}"
        if NICS_ANNOTATION in notes:
            found += f", NICs {_listed(notes[NICS_ANNOTATION])}"
        return found
    limits = spec["resources"].get("limits") or {}
    if GPU in limits:
        return f"{limits[GPU]} GPUs"
    return f"{limits[GPU_MILLI]} milli of a GPU" if GPU_MILLI in limits else "no GPUs"


def _listed(text: str) -> str:
    return ", ".join(map(str, indices(text))) or "none"


def stamp(at: float) -> str:
    """Return RFC 3339 with nanoseconds, as a kubelet writes it before a line."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%f}000Z"
