"""Show each queueing policy and each kind of preemption happening on a running Kant.

    .venv/bin/python docs/proof/queueing.py [--url http://localhost:8000]

Only REST is used. Every reason is printed as Kant gives it, every expectation is checked; the
exit code is 0 when all hold, 1 when one does not, 2 when the proof cannot begin. The cluster's
policy, the quotas and the tenants are put back at the end, whatever happens.
"""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime

from rest import BORROWER, Client, NotPossible, Pool, Unproven, check, say


def strict_and_best_effort(pool: Pool) -> None:
    """Strict FIFO: nothing overtakes. Best-effort FIFO: what fits goes. Switched meanwhile."""
    g = pool.per_node
    pool.set_policy(queueing="strict-fifo")
    running = pool.submit("running", g - 1)
    pool.runs(running)
    head = pool.submit("head", g)
    pool.waits_with(head, "InsufficientGpus")
    small = pool.submit("small", 1)
    told = pool.waits_with(small, "BehindInQueue")
    check(told["evidence"]["ahead"] == head, "small names the head as the job it stands behind")
    pool.stays_waiting(small, 1.5)
    check(pool.state(head) in ("PENDING", "QUOTA_RESERVED"), "strict FIFO leaves 1 GPU idle")
    pool.set_policy(queueing="best-effort-fifo")
    pool.runs(small)
    check(pool.why(head)["position"] == 1, "best-effort FIFO lets small pass; head stays first")
    pool.clear()


def backfill(pool: Pool) -> None:
    """Backfill: the head has a place and a time; what is over by then goes first."""
    g = pool.per_node
    pool.set_policy(queueing="backfill", backfill_after_s=3600)
    running = pool.submit("running", g - 1, declared_s=120)
    pool.runs(running)
    head = pool.submit("head", g)
    pool.waits_with(head, "InsufficientGpus")
    place = pool.until("the head has a reservation", lambda: pool.why(head)["reservation"])
    say(f"head is reserved {', '.join(place['nodes'])} at {place['starts_at']}")
    began = datetime.fromisoformat(pool.job(running)["admitted_at"])
    ahead = (datetime.fromisoformat(place["starts_at"]) - began).total_seconds()
    check(abs(ahead - 120) < 2, "the reservation begins when the running job ends as declared")
    long = pool.submit("long", 1, declared_s=3000)
    told = pool.waits_with(long, "ReservedForHead")
    check(told["evidence"]["ahead"] == head, "long would delay the head and waits for it")
    short = pool.submit("short", 1, declared_s=20, run_s=1)
    pool.is_over(short)
    check(pool.state(long) in ("PENDING", "QUOTA_RESERVED"), "short went first, long still waits")
    check(pool.why(head)["reservation"] == place, "the head's reservation was not delayed")
    pool.cancel(running)
    pool.runs(head)
    pool.clear()


def backfill_preemption(pool: Pool) -> None:
    """A head that waited too long takes its place back from what was backfilled."""
    g = pool.per_node
    pool.set_policy(queueing="backfill", backfill_after_s=3, preemption=["backfill"])
    running = pool.submit("running", g - 1)
    pool.runs(running)
    head = pool.submit("head", g)
    pool.waits_with(head, "InsufficientGpus")
    filled = pool.submit("filled", 1)
    pool.runs(filled)
    time.sleep(3)
    late = pool.submit("late", 1)
    pool.cancel(running)
    _preempted(pool, filled, head, "backfill")
    pool.runs(head)
    check(pool.state(late) in ("PENDING", "QUOTA_RESERVED"), "late did not get in the head's way")
    pool.clear()


def priority_preemption(pool: Pool) -> None:
    """A higher priority takes the place whose loss costs least."""
    pool.set_policy(queueing="best-effort-fifo", preemption=["priority"])
    half = pool.per_node // 2
    old = pool.submit("old", pool.per_node - half)
    pool.runs(old)
    time.sleep(2)
    young = pool.submit("young", half)
    pool.runs(young)
    urgent = pool.submit("urgent", half, priority=100, run_s=2)
    _preempted(pool, young, urgent, "priority")
    check(pool.state(old) == "RUNNING", "old had more to lose and goes on")
    submitted = pool.job(young)["submitted_at"]
    pool.is_over(urgent)
    pool.runs(young)
    job = pool.job(young)
    check(job["attempt"] == 2, "young runs again, as its second attempt")
    check(job["submitted_at"] == submitted, "it kept its place in the queue")
    pool.clear()


def checkpoint_notice(pool: Pool) -> None:
    """A job that asks for it is told before its pods go, and they stay until its work is saved."""
    pool.set_policy(queueing="best-effort-fifo", preemption=["priority"])
    saves = {"sim.kant.io/run-seconds": "3600", "sim.kant.io/checkpoint-seconds": "1"}
    saver = pool.submit("saver", pool.per_node, checkpoint_notice_s=60, annotations=saves)
    pool.runs(saver)
    urgent = pool.submit("urgent", pool.per_node, priority=100)
    pool.until("urgent waits for it", lambda: pool.event(urgent, "REASON", "WaitingForPreemption"))
    told = pool.until("it is told", lambda: pool.event(saver, "REASON", "CheckpointNotice"))
    say(told["message"])
    saved = pool.until("it answers", lambda: pool.event(saver, "REASON", "Checkpointed"))
    say(saved["message"])
    pool.runs(urgent)
    check(pool.job(urgent)["admitted_at"] >= saved["at"], "urgent started after the work was saved")
    pool.clear()


def reclaim(pool: Pool) -> None:
    """Lent quota comes back when its owner needs it."""
    pool.set_policy(queueing="best-effort-fifo", preemption=["reclaim"])
    lent = pool.submit("lent", pool.per_node, tenant=BORROWER, priority=50)
    pool.runs(lent)
    say(f"lent runs on borrowed quota: {BORROWER} is guaranteed nothing")
    owner = pool.submit("owner", pool.per_node)
    _preempted(pool, lent, owner, "reclaim")
    pool.runs(owner)
    pool.clear()


def _preempted(pool: Pool, victim: str, by: str, kind: str) -> None:
    record = pool.until("a job is preempted", lambda: pool.event(victim, "PREEMPTED"))
    numbers = record["evidence"]
    say(f"{record['reason']}: {record['message']}")
    say("  " + ", ".join(f"{name} {value}" for name, value in numbers.items()))
    check(numbers["by"] == by and numbers["kind"] == kind, f"the record says for whom and: {kind}")
    check(numbers["cost_gpu_s"] >= 0 and numbers["pods"] == 1, "and what it cost")


def hold_and_release(pool: Pool) -> None:
    """A held job keeps its place and does not start."""
    pool.set_policy(queueing="strict-fifo")
    held = pool.submit("held", 1, held=True)
    pool.waits_with(held, "OnHold")
    other = pool.submit("other", 1, run_s=0.5)
    pool.is_over(other)
    check(pool.state(held) == "PENDING", "a held job is in nobody's way")
    pool.client.post(f"/jobs/{held}/release")
    pool.runs(held)
    pool.clear()


def change_priority(pool: Pool) -> None:
    """A waiting job is given another priority and goes first."""
    g = pool.per_node
    running = pool.submit("running", g)
    pool.runs(running)
    first = pool.submit("first", g)
    second = pool.submit("second", g)
    pool.waits_with(first, "InsufficientGpus")
    pool.client.call("PATCH", f"/jobs/{second}", {"priority": 5})
    goes_first = "second stands before first now"
    pool.until(goes_first, lambda: pool.why(second)["position"] == 1, lambda: pool.why(second))
    check(pool.why(first)["position"] == 2, goes_first)
    pool.cancel(running)
    pool.runs(second)
    pool.clear()


def dependencies(pool: Pool) -> None:
    """A job waits for the success of another one, and is told when there is none."""
    one = pool.submit("one", 1, run_s=1.5, held=True)
    two = pool.submit("two", 1, run_s=0.5, after_ok=[one])
    pool.waits_with(two, "OnHold")
    pool.client.post(f"/jobs/{one}/release")
    ended = pool.is_over(one)["ended_at"]
    check(pool.is_over(two)["admitted_at"] >= ended, "two started after the end of one")
    lost = pool.submit("lost", 1)
    never = pool.submit("never", 1, after_ok=[lost])
    pool.cancel(lost)
    told = pool.waits_with(never, "Misconfigured")
    check(told["will_never_run"], "who waits for a success that will not be is told so")
    pool.clear()


def array(pool: Pool) -> None:
    """Many equal jobs as one submission."""
    many = pool.submit("many", 1, run_s=0.5, array={"count": 6}, held=True)
    last = pool.submit("last", 1, run_s=0.5, after_ok=[many])
    told = pool.waits_with(last, "OnHold")
    check(told["evidence"]["jobs"] == 6, "last waits for all jobs of the array")
    pool.client.post(f"/job-arrays/{many}/release")

    def done() -> bool:
        states: dict[str, int] = pool.client.get(f"/job-arrays/{many}")["states"]
        return states == {"SUCCEEDED": 6}

    pool.until("six jobs of one array succeed", done)
    check(True, "six jobs, submitted and released as one, have succeeded")
    pool.is_over(last)
    pool.clear()


def run_limit(pool: Pool) -> None:
    """A job is warned before its run-time limit and ended at it."""
    pool.set_policy(queueing="best-effort-fifo", warn_before_s=1)
    job = pool.submit("endless", 1, run_limit_s=2)
    ended = pool.is_over(job, "FAILED")
    note = pool.event(job, "REASON", "RunLimitNear")
    check(note is not None, f"it was warned: {note and note['message']}")
    check(ended["reason"] == "RunLimitExceeded", f"it was ended: {ended['message']}")
    pool.clear()


def consolidation(pool: Pool) -> None:
    """A replica moves where that makes one partly used node fewer. (All nodes are free for it.)"""
    pool.set_policy(queueing="best-effort-fifo")
    pool.cancel(pool.filler)
    pool.is_over(pool.filler, "CANCELLED")
    most, rest = pool.submit("most", pool.per_node - 1), pool.submit("rest", 1)
    pool.runs(most)
    pool.runs(rest)
    web = pool.submit("web", 1, kind="inference", gang=False)
    pool.runs(web)
    pool.cancel(rest)
    pool.is_over(rest, "CANCELLED")
    pool.set_policy(queueing="best-effort-fifo", consolidation=True)
    moved = pool.until("web is moved", lambda: pool.event(web, "REASON", "Moved"))
    say(moved["message"])

    def there() -> bool:
        pods = pool.client.get(f"/jobs/{web}/pods")["items"]
        return [p["node"] for p in pods if p["state"] == "RUNNING"] == [moved["evidence"]["to"]]

    pool.until("it runs there", there, lambda: pool.job(web))
    check(pool.state(web) == "RUNNING", "web has not been preempted")
    pool.clear()


SCENES: tuple[Callable[[Pool], None], ...] = (
    strict_and_best_effort,
    backfill,
    backfill_preemption,
    priority_preemption,
    checkpoint_notice,
    reclaim,
    hold_and_release,
    change_priority,
    dependencies,
    array,
    run_limit,
    consolidation,
)


def prove(pool: Pool) -> None:
    pool.prepare()
    print(f"Pool: {pool.gpu_type}; one node of {pool.per_node} GPUs is free.", flush=True)
    for number, scene in enumerate(SCENES, 1):
        began = time.monotonic()
        print(f"\n{number}. {(scene.__doc__ or '').strip()}", flush=True)
        scene(pool)
        say(f"({time.monotonic() - began:.1f} s)")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--cluster", default="demo")
    parser.add_argument("--user", default="operator", help="an operator")
    parser.add_argument("--password", default="kant-demo")
    given = parser.parse_args()
    try:
        with (
            Client(given.url, given.user, given.password) as client,
            Pool(client, given.cluster) as pool,
        ):
            prove(pool)
    except NotPossible as error:
        print(f"queueing proof: {error}", file=sys.stderr)
        return 2
    except Unproven as error:
        print(f"queueing proof: NOT PROVEN: {error}", file=sys.stderr)
        return 1
    print("\nAll of it holds; policy, quotas and tenants are as before.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
