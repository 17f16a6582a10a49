"""The same input gives the same decisions, whatever the hash seed and the order of mappings."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from scheduling.engine import deltas as d
from scheduling.engine.cycle import SchedulerState, run_cycle
from scheduling.engine.types import Policy, QueueingPolicy, QuotaSpec, TenantSpec
from tests.engine.scenario import ASKS, job, node

labels = {"b": "1", "a": "2", "c": "3"}
if sys.argv[1] == "reversed":
    labels = dict(reversed(labels.items()))
said = []
for policy in QueueingPolicy:
    state = SchedulerState(policy=Policy(policy))
    facts = [d.NodeChanged(node(f"n{i}", 8, "H100", labels=labels)) for i in range(6)]
    facts += [d.NodeChanged(node(f"m{i}", 4, "L4", labels=labels)) for i in range(4)]
    rows = tuple(QuotaSpec(t, m, 16000) for t in "abc" for m in ("H100", "L4"))
    facts.append(d.TenantsChanged(tuple(TenantSpec(t) for t in "abc"), rows))
    for i in range(60):
        words = ["p%d" % (i % 3)] + (["pods"] if i % 4 == 0 else [])
        asks = ASKS[i % len(ASKS)]
        facts.append(d.JobSubmitted(job(f"j{i}", "abc"[i % 3], asks, *words, at=i % 7)))
    for now in range(0, 400, 20):
        result = run_cycle(state, facts, float(now))
        said.append(repr(result))
        facts = [d.JobEnded(s.job_id) for s in result.started[::2]]
        facts += [d.JobRequeued(s.job_id, now + 30.0, ("n1",)) for s in result.started[1::2]]
print(json.dumps(said))
"""


def test_decisions_do_not_depend_on_hash_seed_or_dict_order() -> None:
    answers = set()
    for seed, order in (("0", "as written"), ("1", "reversed"), ("4242", "as written")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, order],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1
    assert "Started" in json.loads(answers.pop())[0]
