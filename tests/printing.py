"""A Kant that serves as in production (ASGI), with an embedded cluster whose pods print."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from kant.handler import Handler
from scheduling.models import Job, Placement
from scheduling.queries import pod_logs
from tenants.services.tokens import create_token
from tests.organisation import Organisation
from tests.simcluster.harness import Sim, pod

NAMESPACE = "kant-jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODE = "gpu-0000"


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Run a web server in this process and return its address. It streams, which the test client
    cannot."""
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen()
    # kant.asgi would reconfigure logging to the output that pytest is capturing.
    config = uvicorn.Config(Handler(), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
    thread.start()
    yield "127.0.0.1", door.getsockname()[1]
    server.should_exit = server.force_exit = True
    thread.join(60)
    door.close()


class Printing:
    """Jobs of an organisation, their pods on the cluster, and requests for their output."""

    def __init__(self, org: Organisation, sim: Sim, at: tuple[str, int]) -> None:
        self.org, self.sim, self.at = org, sim, at
        self.url = f"http://{at[0]}:{at[1]}"
        org.cluster.access = {"server": sim.url}
        org.cluster.save()
        if sim.call("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == 404:
            sim.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._tokens: dict[str, str] = {}

    def token(self, who: str) -> str:
        if who not in self._tokens:
            self._tokens[who] = create_token(self.org.users[who], "test").secret
        return self._tokens[who]

    def submit(self, **fields: Any) -> Job:
        document = {"name": "one", "tenant": "vision", "gpu_type": "H100", "gpus": 1, **fields}
        answer = self.org.client("eve").post("/api/v1/jobs", document, format="json")
        assert answer.status_code == 201, answer.json()
        return Job.objects.get(id=answer.json()["id"])

    def start(
        self,
        job: Job,
        ordinal: int = 0,
        *,
        pod_set: int = 0,
        attempt: int = 1,
        run: float | None = None,
        exit_code: int = 0,
    ) -> Placement:
        """Run a pod of the job that ends after this many seconds; return its placement."""
        name = f"{job.name}-{str(job.pk)[:8]}-{attempt}-{pod_set}-{ordinal}"
        uid = self.sim.post(PODS, pod(name, run=run, exit_code=exit_code))["metadata"]["uid"]
        self.sim.bind(name, NODE, NAMESPACE)
        state = {"state": "RUNNING", "attempt": attempt}
        Job.objects.filter(pk=job.pk).update(**state)
        return Placement.objects.create(
            job=job, attempt=attempt, pod_set=pod_set, ordinal=ordinal, pod_name=name,
            pod_uid=uid, node=NODE, state="RUNNING", intended_at=job.submitted_at,
        )  # fmt: skip

    def path(self, name: str) -> str:
        return f"{PODS}/{name}"

    def open(
        self, job: Job, query: str = "", who: str = "eve"
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self.at, timeout=60)
        headers = {"Authorization": f"Bearer {self.token(who)}"}
        connection.request("GET", f"/api/v1/jobs/{job.pk}/logs{query}", headers=headers)
        return connection, connection.getresponse()

    def get(self, job: Job, query: str = "", who: str = "eve") -> tuple[int, Any]:
        """Return (status, text or problem document)."""
        connection, answer = self.open(job, query, who)
        body = answer.read()
        connection.close()
        if answer.status != 200:
            assert answer.headers["Content-Type"] == "application/problem+json"
            return answer.status, json.loads(body)
        return 200, body.decode()


def open_logs() -> int:
    """Return how many logs this process has open."""
    return pod_logs._places._open.total()
