"""Whether quota may be borrowed, and how much (paper 3.2.1). Amounts are milli-GPU.

What an account uses beyond its guarantee is borrowed. A request may borrow only while the cohort
has idle quota to lend; what the cohort cannot lend, the account above has to borrow. An owner can
always use its guarantee, whatever it has lent: its borrowers are then overdrawn and the first to be
reclaimed from.

`chain`: the accounts that a request is charged to, nearest first (`QuotaBook.chain`).
"""

from collections.abc import Iterable
from typing import NamedTuple

from scheduling.engine.quota.accounts import UNLIMITED, Account, Cohort
from scheduling.engine.quota.holds import Hold
from scheduling.engine.verdict import Reason

Chain = tuple[Account, ...]
# What a job ahead waits for: idle quota that a cohort has to lend, or the use of one account.
Awaited = frozenset[Account | Cohort]
# The same, and what a job ahead will need when it starts.
Kept = frozenset[Account | Cohort | Hold]


class Refusal(NamedTuple):
    """Why quota refuses a request: the account that refuses, and its numbers (milli-GPU).

    `non_preemptible`: the request is for a non-preemptible job, and such jobs hold all that they
    may. `hold`: what is asked for is kept because a job ahead will need it.
    """

    reason: Reason
    account: Account
    asked: int
    allowed: int
    non_preemptible: bool = False
    hold: Hold | None = None


# An account of a chain as it would be after a request: (account, used, borrowed, what its cohort
# then borrows beyond what it lends, whether the request itself borrows here). It does not borrow if
# it only makes the account lend less than before.
_Step = tuple[Account, int, int, int, bool]


def _steps(chain: Chain, milli: int) -> list[_Step]:
    lack: int | None = None
    borrows = False
    steps: list[_Step] = []
    for account in chain:
        cohort, used = account.cohort, account.used + milli
        over, lendable = account.after(used, lack)
        by_use = max(0, account.used - account.guaranteed)
        borrows = over > account.over and (borrows or used - account.guaranteed > by_use)
        lack = cohort.borrowed - account.over + over - cohort.lendable + account.lendable
        lack -= lendable
        steps.append((account, used, over, lack, borrows))
    return steps


def borrows(chain: Chain, milli: int) -> bool:
    """Return whether part of `milli` more would be borrowed now, at any level."""
    return any(borrows for _, _, _, _, borrows in _steps(chain, milli))


def refused(chain: Chain, milli: int, kept: Kept) -> Refusal | None:
    """Return why `milli` more may not borrow now what it would have to borrow.

    Nothing `kept` for a job ahead may be borrowed. None if it may borrow, or borrows nothing.
    """
    for account in chain:
        if account.used + milli > account.guaranteed:
            break
    else:
        return None  # nothing is borrowed at any level
    for account, _, over, lack, borrows in _steps(chain, milli):
        if not borrows:
            continue
        more = over - account.over
        if not account.shared or account in kept or account.cohort in kept:
            return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, max(0, milli - more))
        beyond = over - max(account.borrow_limit, account.over)
        if beyond > 0:
            left = max(0, milli - beyond)
            return Refusal(Reason.BORROW_LIMIT_REACHED, account, milli, left)
        if account.parent is None and lack > 0:
            left = max(0, milli - min(more, lack))
            return Refusal(Reason.WAITING_FOR_QUOTA, account, milli, left)
    return None


def slack(chain: Chain, milli: int) -> int:
    """Return how much more anybody may book before `milli` more may no longer be borrowed.

    `milli` more may be held now. The result is a lower bound.
    """
    left = UNLIMITED
    for account, _, over, lack, _ in _steps(chain, milli):
        if not account.shared:
            return 0
        left = min(left, max(account.borrow_limit, account.over) - over)
        if account.parent is None:
            left = min(left, -lack)
    return left


def would_borrow(chain: Chain, milli: int) -> bool:
    """Return whether the request would borrow even if nobody else held more than its guarantee.

    What others owe, at any depth, is theirs to return. The request is for `milli` more.
    """
    before, held = 0, 0  # of the account below: what is rightful now, and with the request
    for account, used, _, _, borrows in _steps(chain, milli):
        held = used if account.below is None else account.below.rightful - before + held
        if borrows and held > account.guaranteed:
            return True
        before = account.rightful
    return False


def would_owe(chain: Chain, milli: int) -> int:
    """Return how much more would be borrowed with `milli` more: the later result of booking."""
    steps = _steps(chain, milli)
    return max([over - account.over for account, _, over, _, _ in steps], default=0)


def awaited(asked: Iterable[tuple[Chain, int]], no: Refusal) -> Awaited:
    """Return what a refused request waits for that others may borrow.

    That is all it would borrow from, up to the account that refuses it for a limit of its own.
    `asked`: (chain, milli) of the request.
    """
    if no.non_preemptible:
        return frozenset()
    found: set[Account | Cohort] = set()
    for chain, milli in asked:
        for account, _, _, _, borrows in _steps(chain, milli):
            lent_out = account.shared and no.reason is Reason.WAITING_FOR_QUOTA
            if account is no.account and not lent_out:
                found.add(account)
                break
            if borrows:
                found.add(account.cohort)
    return frozenset(found)


def wants(chain: Chain, milli: int, kept: Kept) -> bool:
    """Return whether `milli` more would borrow of what is `kept`, whether that is free or not.

    A request within the guarantee borrows nothing: what others owe is no part of what is kept.
    """
    return would_borrow(chain, milli) and any(
        borrows and (account in kept or account.cohort in kept)
        for account, _, _, _, borrows in _steps(chain, milli)
    )


def ceiling(chain: Chain) -> int:
    """Return the most that could ever be held: guaranteed plus borrowable."""
    most, beyond = UNLIMITED, 0
    for account in reversed(chain):
        cap = account.guaranteed
        if account.shared:
            others = sum(a.lends for a in account.cohort.members if a is not account)
            cap += min(account.borrow_limit, others + beyond)
        beyond = max(0, cap - account.guaranteed)
        most = min(most, cap)
    return most if chain else 0
