"""An embedded Kant's own worker replays what Kant did: the same result, and the result on fewer
nodes."""

import base64
import json
import signal
import sqlite3
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from tests.live.test_serve import Serving

pytestmark = pytest.mark.live

JOBS, RUN_S, WITHIN_S = 12, 2.0, 90.0


class Client:
    def __init__(self, serving):
        self.url = f"{serving.url}api/v1"
        self.headers = {"Content-Type": "application/json"}
        basic = base64.b64encode(b"operator:kant-demo").decode()
        made = self.call("/tokens", {"name": "replays"}, Authorization=f"Basic {basic}")
        self.headers["Authorization"] = f"Bearer {made['secret']}"

    def call(self, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {**self.headers, **headers})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def until(self, path, reached):
        deadline = time.monotonic() + WITHIN_S
        while True:
            found = self.call(path)
            if reached(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def replayed(self, **body):
        replay = self.call("/replays", {"cluster": "demo", **body})
        return self.until(f"/replays/{replay['id']}", lambda r: r["state"] not in OPEN)


OPEN = ("QUEUED", "RUNNING")


def test_a_recorded_history_is_replayed_and_outlives_a_restart(migrated_folder):
    serving = Serving(migrated_folder)
    try:
        client = Client(serving)
        since = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
        for number in range(JOBS):
            document = {
                "name": f"job-{number}",
                "tenant": "vision",
                "gpus": 8,
                "gpu_type": "NVIDIA-H100-80GB-HBM3",
                "annotations": {"sim.kant.io/run-seconds": str(RUN_S)},
            }
            client.call("/jobs", document)
        client.until("/jobs?state=SUCCEEDED&limit=100", lambda page: len(page["items"]) == JOBS)

        done = client.replayed(since=since)
        assert (done["state"], done["message"]) == ("DONE", "")
        result = done["result"]
        assert result["history"]["jobs"] == JOBS
        assert result["history"]["unreadable"] == 0
        assert result["baseline"] == result["changed"]
        assert result["starts"]["same"] == JOBS
        assert result["trust"]["grade"] == "close"
        held = JOBS * 8 * RUN_S / 3600
        assert result["baseline"]["gpu_hours"] >= held
        assert result["recorded"]["gpu_hours"] == pytest.approx(
            result["baseline"]["gpu_hours"], rel=0.5
        )

        # With only two nodes of their type left, some of them wait for the others.
        nodes = [{"gpu_type": "NVIDIA-H100-80GB-HBM3", "gpus": 8, "change": -62}]
        fewer = client.replayed(since=since, nodes=nodes)["result"]
        assert fewer["starts"]["later"] > 0
        assert fewer["changed"]["gpus"] == fewer["baseline"]["gpus"] - 62 * 8
    finally:
        serving.end(signal.SIGTERM)

    with sqlite3.connect(migrated_folder / "kant.sqlite3") as database:
        # As after a failure of the machine during the computation.
        database.execute(
            "update metrics_replay set state = 'RUNNING', alive_at = '2020-01-01', result = null "
            "where id = ?",
            [done["id"].replace("-", "")],
        )
    again = Serving(migrated_folder)
    try:
        client = Client(again)
        lost = client.until(f"/replays/{done['id']}", lambda r: r["state"] not in OPEN)
        assert lost["state"] == "FAILED"
        assert "the process that computed it ended" in lost["message"]
        assert client.replayed(since=since)["state"] == "DONE"
    finally:
        again.end(signal.SIGTERM)
