"""Kant's REST as the proofs use it: a client, jobs to follow, and what a proof found.

Standard library only. A proof takes a pool of its own: the one with the fewest GPUs, all of whose
nodes but one are filled by a job that nobody may preempt. What happens on the last node is then
the same whatever the size of the fleet.
"""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

WITHIN_S = 90.0
NODES_WITHIN_S = 30.0
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
WAITS = ("PENDING", "QUOTA_RESERVED")
FILL, OWNER, BORROWER = "proof-fill", "proof-owner", "proof-borrower"
ROOT = "proof"
WHY = "Live proof of queueing"


class Unproven(Exception):
    """Something did not happen as it should; the text says what."""


class Refused(Unproven):
    """Kant answered a request by an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NotPossible(Exception):
    """The proof cannot begin here; the text says why and what to do."""


class Client:
    """Requests to one Kant, with a token that is given up at the end. Answers are decoded JSON."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._base = url.rstrip("/") + "/api/v1"
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}"}
        try:
            token = self.post("/tokens", {"name": WHY})
        except Refused as error:
            raise NotPossible(str(error)) from None
        self._token_id = token["id"]
        self._headers = {"Authorization": f"Bearer {token['secret']}"}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.call("DELETE", f"/tokens/{self._token_id}")

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[Any, dict[str, str]]:
        """(decoded body, headers) of the answer."""
        request = urllib.request.Request(
            self._base + path,
            None if body is None else json.dumps(body).encode(),
            {
                **self._headers,
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read() or b"null"), dict(reply.headers)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            said = f"{method} {path} was answered by {error.code}: {text}"
            raise Refused(error.code, said) from None
        except urllib.error.URLError as error:
            raise NotPossible(
                f"nothing answers at {self._base} ({error.reason}); start Kant with `make run`, "
                "or say where it is with --url"
            ) from None

    def get(self, path: str) -> Any:
        return self.call("GET", path)[0]

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body)[0]

    def every(self, path: str) -> list[Any]:
        """The items of all pages of a list."""
        found: list[Any] = []
        more: str | None = path + ("&" if "?" in path else "?") + "limit=200"
        while more:
            page = self.get(more)
            found += page["items"]
            more = page["next"] and page["next"].split("/api/v1", 1)[1]
        return found

    def has(self, path: str) -> bool:
        try:
            self.get(path)
        except Refused as error:
            if error.status == 404:
                return False
            raise
        return True


class Pool:
    """The pool of GPUs the proof runs on, its tenants and quotas; `restore` undoes all of it."""

    def __init__(self, client: Client, cluster: str) -> None:
        self.client, self.cluster = client, cluster
        if not client.has(f"/clusters/{cluster}"):
            raise NotPossible(f"there is no cluster {cluster}; name one with --cluster")
        self._jobs: list[str] = []
        self.filler = ""
        self._quotas: list[str] = []
        self.gpu_type, self.nodes, self.per_node = self._smallest()
        self._must_be_idle()
        self.before = client.get(self._policy_path)["policy"]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    @property
    def _policy_path(self) -> str:
        return f"/clusters/{self.cluster}/policy"

    def _smallest(self) -> tuple[str, int, int]:
        """(GPU type, usable nodes, GPUs of each) of the pool with the fewest GPUs."""
        pools: dict[str, list[int]] = {}
        for node in self._nodes():
            if node["schedulable"] and node["gpus"] and node["healthy_gpus"] == node["gpus"]:
                pools.setdefault(node["gpu_type"], []).append(node["gpus"])
        even = {name: sizes for name, sizes in pools.items() if min(sizes) == max(sizes) >= 4}
        even = {name: sizes for name, sizes in even.items() if len(sizes) > 1}
        if not even:
            raise NotPossible(
                f"cluster {self.cluster} has no pool of at least two healthy, equal nodes of 4 "
                "GPUs or more; run the proof on the demo fleet"
            )
        name = min(even, key=lambda name: (sum(even[name]), name))
        return name, len(even[name]), even[name][0]

    def _nodes(self) -> list[Any]:
        """The nodes, once there are any: Kant answers before its scheduler has looked at them."""
        deadline = time.monotonic() + NODES_WITHIN_S
        while not (nodes := self.client.every(f"/clusters/{self.cluster}/nodes")):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        return nodes

    def _must_be_idle(self) -> None:
        states = "&".join(f"state={s}" for s in (*WAITS, "ADMITTED", "RUNNING"))
        jobs = self.client.every(f"/jobs?cluster={self.cluster}&gpu_type={self.gpu_type}&{states}")
        if jobs:
            raise NotPossible(
                f"{len(jobs)} jobs wait for or use {self.gpu_type}, e.g. {jobs[0]['name']} "
                f"({jobs[0]['id']}); cancel them or wait until they are over"
            )

    def prepare(self) -> None:
        """Tenants, quotas, and the job that fills all nodes but one."""
        fill, last = (self.nodes - 1) * self.per_node, self.per_node
        for name, parent in ((ROOT, None), (FILL, ROOT), (OWNER, ROOT), (BORROWER, ROOT)):
            if self.client.has(f"/tenants/{name}"):
                change = {"is_active": True, "reason": WHY}
                self.client.call("PATCH", f"/tenants/{name}", change)
            else:
                self.client.post("/tenants", {"name": name, "parent": parent, "title": WHY})
        self.quota(ROOT, fill + 4 * last, "isolated")
        self.quota(FILL, fill, "isolated")
        self.quota(OWNER, 4 * last, "shared")
        self.quota(BORROWER, 0, "shared")
        self.filler = self.submit("filler", self.per_node, pods=self.nodes - 1, preemptible=False)
        self.until("all nodes but one are filled", lambda: self.state(self.filler) == "RUNNING")

    def quota(self, tenant: str, gpus: int, mode: str) -> None:
        path = f"/quotas/{tenant}/{self.gpu_type}"
        body = {"guaranteed": gpus, "mode": mode, "reason": WHY}
        if self.client.has(path):
            version = self.client.call("GET", path)[1]["ETag"]
            self.client.call("PUT", f"{path}?overcommit=true", body, If_Match=version)
        else:
            self.client.call("PUT", f"{path}?overcommit=true", body, If_None_Match="*")
        self._quotas.append(path)

    def set_policy(self, **fields: Any) -> None:
        """The cluster's policy, with these fields instead of its own."""
        quick = {"preemption": [], "min_runtime_s": 0, "fair_share": False, "spare_nodes": {}}
        self._put_policy({**self.before, **quick, **fields})

    def _put_policy(self, document: dict[str, Any]) -> None:
        version = self.client.call("GET", self._policy_path)[1]["ETag"]
        body = {"policy": document, "reason": WHY}
        self.client.call("PUT", self._policy_path, body, If_Match=version)

    # --- jobs -----------------------------------------------------------------------------------
    def submit(
        self, name: str, gpus: int, *, pods: int = 1, run_s: float = 3600, **fields: Any
    ) -> str:
        """Submit a job of `pods` x `gpus`; returns its id, or that of its array."""
        document = {
            "name": f"proof-{name}",
            "tenant": FILL if name == "filler" else OWNER,
            "cluster": self.cluster,
            "gpu_type": self.gpu_type,
            "gpus": gpus,
            "replicas": pods,
            "cpu_milli": 100,
            "annotations": {"sim.kant.io/run-seconds": str(run_s)},
            **fields,
        }
        job_id: str = self.client.post("/jobs", document)["id"]
        if "array" not in fields:
            self._jobs.append(job_id)
        return job_id

    def job(self, job_id: str) -> Any:
        return self.client.get(f"/jobs/{job_id}")

    def state(self, job_id: str) -> str:
        return str(self.job(job_id)["state"])

    def why(self, job_id: str) -> Any:
        return self.client.get(f"/jobs/{job_id}/explain")

    def event(self, job_id: str, kind: str, reason: str = "") -> Any:
        """The last event of this kind and reason; None while there is none."""
        events = self.client.every(f"/jobs/{job_id}/events")
        named = [e for e in events if e["kind"] == kind and reason in ("", e["reason"])]
        return named[-1] if named else None

    def cancel(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.client.post(f"/jobs/{job_id}/cancel")

    def waits_with(self, job_id: str, reason: str) -> Any:
        """Wait until the job waits for this reason; returns its explanation, after telling it."""

        def so() -> Any:
            told = self.why(job_id)
            return told if told["state"] in WAITS and told["reason"] == reason else None

        told = self.until(f"a job waits: {reason}", so, lambda: self.why(job_id))
        name = self.job(job_id)["name"].removeprefix("proof-")
        say(f"{name} waits: {told['reason']} {told['summary']}")
        numbers = ", ".join(f"{k} {_short(v)}" for k, v in told["evidence"].items())
        if numbers:
            say(f"  evidence: {numbers}")
        if told["remedies"]:
            say(f"  what helps: {'; '.join(told['remedies'])}")
        return told

    def runs(self, job_id: str) -> None:
        name = self.job(job_id)["name"].removeprefix("proof-")
        self.until(
            f"{name} runs",
            lambda: self.state(job_id) == "RUNNING",
            lambda: self.why(job_id),
        )
        say(f"{name} runs")

    def is_over(self, job_id: str, state: str = "SUCCEEDED") -> Any:
        self.until(f"a job is {state}", lambda: self.state(job_id) in OVER)
        self.until("its pods are gone", lambda: self._holds_nothing(job_id))
        job = self.job(job_id)
        name = job["name"].removeprefix("proof-")
        if job["state"] != state:
            raise Unproven(f"{name} is {job['state']} and should be {state}: {job['message']}")
        say(f"{name} is {state}")
        return job

    def stays_waiting(self, job_id: str, seconds: float) -> None:
        """Check that a job does not start meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            check(self.state(job_id) in WAITS, "the job waits", quiet=True)
            time.sleep(0.2)

    def until(
        self, what: str, done: Callable[[], Any], seen: Callable[[], Any] | None = None
    ) -> Any:
        """Wait until `done()`; returns what it said. Raises Unproven with what was `seen`."""
        end = time.monotonic() + WITHIN_S
        while not (said := done()):
            if time.monotonic() > end:
                last = f"; last seen: {json.dumps(seen())}" if seen else ""
                raise Unproven(f"within {WITHIN_S:g} s it did not come true that {what}{last}")
            time.sleep(0.1)
        return said

    def clear(self) -> None:
        """Cancel every job of the proof but the first, and wait until their GPUs are free."""
        self._cancel(self._jobs[1:])
        del self._jobs[1:]

    def _cancel(self, jobs: list[str]) -> None:
        for job_id in jobs:
            if self.state(job_id) not in OVER:
                self.cancel(job_id)
        for job_id in jobs:
            self.until("the pods of a cancelled job are gone", partial(self._holds_nothing, job_id))

    def _holds_nothing(self, job_id: str) -> bool:
        """A pod that is neither gone nor finished still holds its GPUs."""
        live = "state=INTENDED&state=BOUND&state=RUNNING"
        return not self.client.every(f"/jobs/{job_id}/pods?{live}")

    def restore(self) -> None:
        """Cancel all jobs, put policy, quotas and tenants back, and give the token up."""
        self._cancel(self._jobs)
        self._put_policy(self.before)
        for path in reversed(self._quotas):
            version = self.client.call("GET", path)[1]["ETag"]
            reason = WHY.replace(" ", "%20")
            self.client.call("DELETE", f"{path}?reason={reason}", If_Match=version)
        for name in (BORROWER, OWNER, FILL, ROOT):
            if self.client.has(f"/tenants/{name}"):
                # Its jobs stay in the history, so it is put to rest and not deleted.
                change = {"is_active": False, "reason": WHY}
                self.client.call("PATCH", f"/tenants/{name}", change)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def check(holds: bool, what: str, *, quiet: bool = False) -> None:
    """Raises Unproven unless it holds."""
    if not holds:
        raise Unproven(f"it does not hold that {what}")
    if not quiet:
        print(f"   ✓ {what}", flush=True)


def _short(value: Any) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text[:8] + "…" if len(text) == 36 and text.count("-") == 4 else text
