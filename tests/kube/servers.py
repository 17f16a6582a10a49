"""The two servers of the contract suite, behind one interface."""

import contextlib
import select
import signal
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any, Protocol

import yaml

from metrics.benches.apiserver import TOKENS, ApiServer, free_ports
from tests.kube.api import Api

ROOT = Path(__file__).resolve().parents[2]
RBAC = ROOT / "scheduling" / "kube" / "rbac.yaml"
TOKEN = "contract-suite"
MOST = 40  # requests per verb that the embedded cluster refuses

# One machine that no test uses: tests make the nodes they need through the API.
FLEET = {
    "name": "contract",
    "pools": [
        {"name": "idle", "count": 1, "cpu_milli": 1000, "memory_mib": 1024, "nodes_per_leaf": 1}
    ],
}


_KANT = {"kind": "User", "user": {"name": TOKENS["kant"][0]}}
_WRITES = {
    "verbs": ["create", "update", "patch", "delete"],
    "apiGroups": ["*"],
    "resources": ["*"],
    "clusterScope": True,
    "namespaces": ["*"],
}
# A priority level without seats, which admits one request at a time, and the flow schema that sends
# Kant's writes there.
_NO_SHARE: dict[str, dict[str, Any]] = {
    "prioritylevelconfigurations": {
        "metadata": {"name": "turned-away"},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 0,
                "lendablePercent": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            },
        },
    },
    "flowschemas": {
        "metadata": {"name": "turned-away"},
        "spec": {
            "priorityLevelConfiguration": {"name": "turned-away"},
            "matchingPrecedence": 2,
            "rules": [{"subjects": [_KANT], "resourceRules": [_WRITES]}],
        },
    },
}


class Server(Protocol):
    """A running API server with its objects on disk."""

    name: str
    port: int
    api: Api

    def access(self, *, port: int | None = None) -> dict[str, Any]:
        """Return a `Cluster.access` with Kant's rights, optionally through a proxy's port."""

    def stop(self) -> None:
        """Kill the server; its objects stay."""

    def start(self) -> None:
        """Start the server (again) at the same address."""

    def freeze(self, *, frozen: bool) -> None:
        """Stop the store from answering, or let it go on."""

    def turn_away(self, *, most: bool) -> None:
        """Answer most of Kant's writes with 429, or stop doing so."""

    def turned_away(self) -> int:
        """Return how many requests were answered with 429."""


class KubeApiServer:
    """kube-apiserver + etcd, with Kant's account bound to the role in rbac.yaml."""

    name = "kube-apiserver"

    def __init__(self, folder: Path) -> None:
        self.pair = ApiServer(folder)
        self.pair.start()
        self.port = self.pair.port
        self.api = Api(self.pair.url, "admin-token", str(self.pair.ca_file))
        for document in yaml.safe_load_all(RBAC.read_text()):
            plural = f"{document['kind'].lower()}s"
            self.api.ok("POST", f"/apis/rbac.authorization.k8s.io/v1/{plural}", document)

    def access(self, *, port: int | None = None) -> dict[str, Any]:
        access = self.pair.access("kant")
        if port is not None:
            access["server"] = f"https://127.0.0.1:{port}"
        return access

    def stop(self) -> None:
        self.pair.stop_apiserver()

    def start(self) -> None:
        self.pair.start_apiserver()

    def freeze(self, *, frozen: bool) -> None:
        self.pair.freeze_etcd(frozen=frozen)

    def turn_away(self, *, most: bool) -> None:
        """Use API priority and fairness: of simultaneous requests, one is admitted."""
        for plural, body in _NO_SHARE.items():
            path = f"/apis/flowcontrol.apiserver.k8s.io/v1/{plural}"
            if most:
                self.api.ok("POST", path, body)
            else:
                self.api.ok("DELETE", f"{path}/{body['metadata']['name']}")

    def turned_away(self) -> int:
        text = self.api.call("GET", "/metrics").body.decode()
        rows = [row for row in text.splitlines() if 'priority_level="turned-away"' in row]
        rejected = "apiserver_flowcontrol_rejected_requests_total"
        return sum(int(row.split()[-1]) for row in rows if row.startswith(rejected))

    def close(self) -> None:
        with contextlib.suppress(KeyError, urllib.error.URLError):
            self.pair.stop()


class EmbeddedServer:
    """The embedded cluster in its own process, behind a token."""

    name = "embedded"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
        (folder / "token").write_text(TOKEN)
        [self.port] = free_ports(1)  # restarts use the same port
        self._process: subprocess.Popen[str] | None = None
        self._turns_away = False
        self.start()
        self.api = Api(f"http://127.0.0.1:{self.port}", TOKEN)

    def access(self, *, port: int | None = None) -> dict[str, Any]:
        return {
            "server": f"http://127.0.0.1:{port or self.port}",
            "token_file": str(self._folder / "token"),
        }

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "scheduling.simcluster", "--port", str(self.port)),
                *("--fleet", str(self._folder / "fleet.yaml")),
                *("--token-file", str(self._folder / "token")),
                *("--state-dir", str(self._folder / "state")),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 120)
        line = self._process.stdout.readline() if ready else ""
        assert line.startswith("READY "), f"the embedded cluster said {line!r}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def freeze(self, *, frozen: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def turn_away(self, *, most: bool) -> None:
        self._turns_away = most
        for verb in ("create", "bind") if most else ():
            self.fault("too-many-requests", verb=verb, count=MOST, retry_after_s=1)

    def turned_away(self) -> int:
        """Return all of both verbs, or 0 while some are left to refuse."""
        over = self._turns_away and not self.api.ok("GET", "/sim/faults")["faults"]
        return 2 * MOST if over else 0

    def fault(self, name: str, **fields: Any) -> None:
        """Trigger a fault through the admin endpoint."""
        self.api.ok("POST", "/sim/faults", {"fault": name, **fields})

    def close(self) -> None:
        self.stop()
