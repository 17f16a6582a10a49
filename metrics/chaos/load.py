"""What a chaos run submits: jobs over REST, each exactly once however often it is resent, and
pods."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from metrics.benches.stage import GPUS, MODEL
from metrics.chaos.organisation import NAMESPACE, TENANTS
from metrics.chaos.shape import ProductionShape
from scheduling.kube.translate.manifests import TENANT
from scheduling.kube.translate.plain_pods import GANG, GANG_SIZE

A_ROUND = 12  # submissions
OVER_S = 6.0  # before, during and after the faults of a round
SUBMITTERS = 4
AGAIN_S = 0.5
REPEATED = 0.25  # share of answered jobs that are sent once more
PLAIN_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
# Kant, or a proxy in front of it, asks for a retry.
REPEAT = frozenset({409, 429, 500, 502, 503, 504})


@dataclass(eq=False)
class Submission:
    """A job document or plain pods, and what became of it.

    `jobs`: how many jobs it creates. `needed`: how many pods of a gang start together; 0 = no gang.
    `answers`: statuses in order. `id`: of the job or array. `faults`: errors that no retry fixes.
    """

    name: str
    document: dict[str, Any] = field(default_factory=dict)
    pods: tuple[dict[str, Any], ...] = ()
    jobs: int = 1
    needed: int = 0
    id: str = ""
    answered: bool = False
    answers: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def submissions(seed: int, number: int) -> list[Submission]:
    """Return the submissions of one round, determined by the numbers."""
    random = Random(f"load {seed} {number}")
    makers = random.choices(list(_SHAPES), list(_SHAPES.values()), k=A_ROUND)
    return [make(random, f"r{number}-{i}") for i, make in enumerate(makers)]


def _job(random: Random, name: str, run_s: float, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "tenant": random.choice(TENANTS),
        "gpu_type": MODEL,
        "cpu_milli": 100,
        "annotations": {"sim.kant.io/run-seconds": str(run_s)},
        **fields,
    }


def _single(random: Random, name: str) -> Submission:
    fields = {"gpus": random.randint(1, 4), "replicas": random.randint(1, 3), "gang": False}
    return Submission(name, _job(random, name, random.choice([0.5, 3.0]), **fields))


def _gang(random: Random, name: str) -> Submission:
    pods = random.randint(2, 4)
    document = _job(random, name, random.choice([2.0, 6.0]), gpus=GPUS, replicas=pods)
    return Submission(name, document, needed=pods)


def _elastic(random: Random, name: str) -> Submission:
    fields = {"gpus": 4, "replicas": 4, "min_count": 2}
    return Submission(name, _job(random, name, 4.0, **fields), needed=2)


def _urgent(random: Random, name: str) -> Submission:
    fields = {"gpus": GPUS, "replicas": 2, "priority": random.randint(1, 9)}
    return Submission(name, _job(random, name, 2.0, **fields), needed=2)


def _fixed(random: Random, name: str) -> Submission:
    return Submission(name, _job(random, name, 3.0, gpus=4, preemptible=False))


def _failing(random: Random, name: str) -> Submission:
    document = _job(random, name, 0.5, gpus=1, max_restarts=1)
    document["annotations"]["sim.kant.io/exit-code"] = "1"
    return Submission(name, document)


def _array(random: Random, name: str) -> Submission:
    count = random.randint(3, 6)
    document = _job(random, name, 1.0, gpus=random.randint(1, 2), array={"count": count})
    return Submission(name, document, jobs=count)


def _plain(random: Random, name: str) -> Submission:
    return Submission(
        name, pods=(_pod(name, random.choice(TENANTS), random.choice([1, 2, 4, GPUS])),)
    )


def _plain_gang(random: Random, name: str) -> Submission:
    count, tenant, gpus = random.randint(2, 4), random.choice(TENANTS), random.choice([4, GPUS])
    pods = [_pod(f"{name}-{i}", tenant, gpus) for i in range(count)]
    for pod in pods:
        pod["metadata"]["labels"][GANG] = name
        pod["metadata"]["annotations"][GANG_SIZE] = str(count)
    return Submission(name, pods=tuple(pods), needed=count)


def _pod(name: str, tenant: str, gpus: int) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "100m"}
    limits = {"nvidia.com/gpu": amounts["nvidia.com/gpu"]}
    container = {"name": "main", "image": "team/train:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {TENANT: tenant},
            "annotations": {"sim.kant.io/run-seconds": "2.0"},
        },
        "spec": {
            "schedulerName": "kant",
            "restartPolicy": "Never",
            "containers": [{**container, "resources": {"requests": amounts, "limits": limits}}],
        },
    }


# The relative frequency of each.
_SHAPES: dict[Callable[[Random, str], Submission], int] = {
    _single: 3, _gang: 4, _elastic: 2, _urgent: 2, _fixed: 1, _failing: 1, _array: 2, _plain: 2,
    _plain_gang: 2,
}  # fmt: skip


class Submitters:
    """Sends submissions, each until it is answered. A context manager: what is unanswered when it
    exits stays so. `made`: all submissions in order."""

    def __init__(self, shape: ProductionShape, seed: int) -> None:
        self._shape = shape
        self._seed = seed
        self._pool = ThreadPoolExecutor(SUBMITTERS)
        self._sending: list[Future[None]] = []
        self._stop = threading.Event()
        self.made: list[Submission] = []

    def __enter__(self) -> "Submitters":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, number: int) -> None:
        """Start sending the submissions of a round."""
        now = time.monotonic()
        for i, each in enumerate(submissions(self._seed, number)):
            self.made.append(each)
            due = now + OVER_S * i / A_ROUND
            self._sending.append(self._pool.submit(self._send, each, due))

    def unanswered(self) -> list[Submission]:
        """Return those still being sent; raise what a sender raised."""
        done = [each for each in self._sending if each.done()]
        for each in done:
            each.result()
        self._sending = [each for each in self._sending if each not in done]
        return [each for each in self.made if not each.answered and not each.faults]

    def statuses(self) -> Counter[int]:
        return Counter(status for each in self.made for status in list(each.answers))

    def _send(self, each: Submission, due: float) -> None:
        self._stop.wait(max(0.0, due - time.monotonic()))
        if each.pods:
            asks = (partial(self._create, pod) for pod in each.pods)
            each.answered = all(self._answer(each, ask) is not None for ask in asks)
        else:
            self._send_job(each)

    def _send_job(self, job: Submission) -> None:
        # The seed decides which are repeated, not the order of answers.
        repeated = Random(f"repeat {self._seed} {job.name}").random() < REPEATED
        for _ in range(1 + repeated):
            found = self._answer(job, lambda: self._post(job))
            if found is None:
                return
            if job.answered and found["id"] != job.id:
                job.faults.append(f"sent twice by one key it is {job.id} and {found['id']}")
            job.id, job.answered = found["id"], True

    def _post(self, job: Submission) -> tuple[int, Any]:
        key = f"{self._seed}-{job.name}"
        return self._shape.rest("POST", "/jobs", job.document, **{"Idempotency-Key": key})

    def _create(self, pod: dict[str, Any]) -> tuple[int, Any]:
        """Create a pod. It has a name but no key: an existing one came from a request without a
        reply."""
        status, found = self._shape.kubernetes("POST", PLAIN_PODS, pod)
        return (200, found) if status == 409 else (status, found)

    def _answer(self, of: Submission, ask: Callable[[], tuple[int, Any]]) -> Any:
        """Return the document of the first answer not in REPEAT; None for a refusal, or if the run
        ends first."""
        while not self._stop.is_set():
            try:
                status, found = ask()
            except OSError:
                time.sleep(AGAIN_S)  # no answer, but it may have been carried out
                continue
            of.answers.append(status)
            if status in (200, 201, 202):
                return found
            if status == 500:
                of.faults.append(f"answered 500: {str(found)[:300]}")
            if status not in REPEAT:
                of.faults.append(f"refused by {status}: {str(found)[:300]}")
                return None
            time.sleep(AGAIN_S)
        return None


def expected_jobs(made: Iterable[Submission]) -> dict[str, Submission]:
    """Return {name of the job: its submission} for submissions over REST."""
    return {each.name: each for each in made if not each.pods}
