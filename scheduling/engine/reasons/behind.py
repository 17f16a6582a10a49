"""The reasons of jobs that wait for a job ahead."""

from collections.abc import Mapping
from dataclasses import replace

from scheduling.engine.queue.reservations import Head
from scheduling.engine.types import NO_GPUS
from scheduling.engine.verdict import KEPT_NODES, Reason, Verdict, counted

Numbers = Mapping[str, int | float | str]


def behind(ahead: str, model: str, by_users: Numbers) -> Verdict:
    """`by_users`: the shares of both users, if the job ahead goes first by a smaller share."""
    if model == NO_GPUS:
        return Verdict(
            Reason.BEHIND_IN_QUEUE,
            f"{_who(by_users)} waits for nodes without GPUs, and this job must not overtake it.",
            {"ahead": ahead, **by_users},
            ("wait for the job ahead",),
        )
    return Verdict(
        Reason.BEHIND_IN_QUEUE,
        f"{_who(by_users)} waits for {model} GPUs, and this job must not overtake it.",
        {"ahead": ahead, "gpu_model": model, **by_users},
        ("wait for the job ahead", "choose another GPU model"),
    )


def to_borrow(ahead: str, model: str, by_users: Numbers) -> Verdict:
    return Verdict(
        Reason.BEHIND_IN_QUEUE,
        f"{_who(by_users)} waits to borrow {model} GPUs, and this job must not borrow them first.",
        {"ahead": ahead, "gpu_model": model, **by_users},
        ("wait for the job ahead", "ask for no more than the tenant's own quota has left"),
    )


def has_turn(verdict: Verdict, nodes: int) -> Verdict:
    """Add to the reason of a job with a turn how many nodes are kept for it."""
    text = (
        f"It is this job's turn: Kant keeps the free GPUs on {counted(nodes, 'node', 'nodes')} "
        "for it."
    )
    return replace(
        verdict,
        summary=f"{verdict.summary} {text}",
        evidence={**verdict.evidence, KEPT_NODES: nodes},
    )


def _who(by_users: Numbers) -> str:
    if by_users:
        return "A job of another user of the tenant, who holds fewer GPUs,"
    return "A job ahead"


def quota_reserved(head: Head) -> Verdict:
    """`head`: a job with a known start that needs quota or its place at a limit of jobs."""
    assert head.expected is not None
    return Verdict(
        Reason.RESERVED_FOR_HEAD,
        "Quota is reserved for a job ahead whose start is known.",
        {"ahead": head.job_id, "starts_at": head.expected.at},
        ("declare a run time that ends before the job ahead starts", "wait for the job ahead"),
    )


def reserved(head: Head) -> Verdict:
    numbers: dict[str, int | float | str] = {"ahead": head.job_id}
    text = "The free GPUs are kept for a job ahead that has waited too long."
    if head.expected is not None:
        numbers["starts_at"] = head.expected.at
        numbers["nodes"] = len(head.expected.nodes)
        text = "The free GPUs are reserved for a job ahead whose start is known."
    elif head.kept:
        numbers["nodes"] = len(head.kept)
        text = "The free GPUs are kept for a job ahead, which comes next by fair share."
    return Verdict(
        Reason.RESERVED_FOR_HEAD,
        text,
        numbers,
        ("declare a run time that ends before the job ahead starts", "wait for the job ahead"),
    )
