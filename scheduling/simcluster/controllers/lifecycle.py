"""The status that a kubelet writes at each step of a pod's life."""

from scheduling.simcluster.objects.meta import rfc3339
from scheduling.simcluster.objects.store import Obj

RUN_SECONDS = "sim.kant.io/run-seconds"
EXIT_CODE = "sim.kant.io/exit-code"
STOP_SECONDS = "sim.kant.io/stop-seconds"
CHECKPOINT_SECONDS = "sim.kant.io/checkpoint-seconds"
# The scheduler's warning to a job, and the job's answer.
CHECKPOINT_BY = "kant.io/checkpoint-by"
CHECKPOINTED_AT = "kant.io/checkpointed-at"


def _condition(kind: str, good: bool, at: str, reason: str = "") -> Obj:
    out: Obj = {
        "type": kind,
        "status": "True" if good else "False",
        "lastProbeTime": None,
        "lastTransitionTime": at,
    }
    if reason:
        out["reason"] = reason
    return out


def _with_conditions(status: Obj, conditions: list[Obj]) -> None:
    kept = {c["type"]: c for c in status.get("conditions") or ()}
    kept.update({c["type"]: c for c in conditions})
    status["conditions"] = list(kept.values())


def _set_containers(pod: Obj, state: Obj, at: str) -> None:
    """Put all containers into a state; plain init containers (no sidecars) are done at once."""
    done = _terminated(0, "Completed", at, at)
    spec, status = pod["spec"], pod["status"]
    status["containerStatuses"] = [_container(pod, c, state) for c in spec["containers"]]
    if inits := spec.get("initContainers"):
        status["initContainerStatuses"] = [
            _container(pod, c, state if c.get("restartPolicy") == "Always" else done) for c in inits
        ]


def _container(pod: Obj, container: Obj, state: Obj) -> Obj:
    running, name = "running" in state, container["name"]
    return {
        "name": name,
        "state": state,
        "lastState": {},
        "ready": running,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "containerID": f"sim://{pod['metadata']['uid']}/{name}",
        "started": running,
    }


def _terminated(exit_code: int, reason: str, started: str, finished: str) -> Obj:
    ended = {"exitCode": exit_code, "reason": reason}
    return {"terminated": {**ended, "startedAt": started, "finishedAt": finished}}


def set_running(pod: Obj, now: float, address: str) -> None:
    at = rfc3339(now)
    status = pod["status"]
    status["phase"] = "Running"
    _with_conditions(
        status,
        [
            _condition("PodReadyToStartContainers", True, at),
            _condition("Initialized", True, at),
            _condition("Ready", True, at),
            _condition("ContainersReady", True, at),
        ],
    )
    status["hostIP"] = address
    status["podIP"] = address
    status["podIPs"] = [{"ip": address}]
    status["startTime"] = at
    _set_containers(pod, {"running": {"startedAt": at}}, at)


def set_finished(pod: Obj, now: float, exit_code: int, reason: str = "") -> None:
    """End the containers: Succeeded for exit code 0, otherwise Failed."""
    at = rfc3339(now)
    status = pod["status"]
    good = exit_code == 0
    status["phase"] = "Succeeded" if good else "Failed"
    why = "PodCompleted" if good else "PodFailed"
    _with_conditions(
        status,
        [
            _condition("PodReadyToStartContainers", False, at),
            _condition("Ready", False, at, why),
            _condition("ContainersReady", False, at, why),
        ],
    )
    started = status.get("startTime", at)
    ended = _terminated(exit_code, reason or ("Completed" if good else "Error"), started, at)
    _set_containers(pod, ended, started)


def set_rejected(pod: Obj, now: float, reason: str, message: str) -> None:
    """Mark the pod as refused by the kubelet; it never ran."""
    status = pod["status"]
    status["phase"] = "Failed"
    status["reason"] = reason
    status["message"] = f"Pod was rejected: {message}"
    status["startTime"] = rfc3339(now)


def run_time(pod: Obj) -> tuple[float | None, int]:
    """Return how many seconds the containers run (None = until deleted), and their exit code.

    Raises:
        ValueError: an annotation is not a usable number.
    """
    annotations = pod["metadata"].get("annotations") or {}
    run_s = _seconds(pod, RUN_SECONDS)
    exit_code = int(annotations.get(EXIT_CODE, 0))
    if not 0 <= exit_code <= 255:
        raise ValueError(f"{EXIT_CODE} {exit_code} is not in 0 to 255")
    return run_s, exit_code


def habits(pod: Obj) -> tuple[float | None, float | None]:
    """Return the seconds in which the containers stop, and in which they save their work.

    None = they stop like all others, and do not save their work when warned.

    Raises:
        ValueError: an annotation is not a usable number.
    """
    return _seconds(pod, STOP_SECONDS), _seconds(pod, CHECKPOINT_SECONDS)


def _seconds(pod: Obj, annotation: str) -> float | None:
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    if text is None:
        return None
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError(f"{annotation} {text} is not in 0 to 1e9")
    return value
