"""Step 3 of a cycle: look for pods to move so that fewer nodes are partly used.

Replicas move first, because they lose no work. Then, if the policy has a budget for lost work, the
jobs move that lose the least.
"""

import math

from scheduling.engine.lifecycle.consolidate import MOVES_A_LOOK, consolidate
from scheduling.engine.lifecycle.defragment import defragment
from scheduling.engine.lifecycle.movable import MoveSearch
from scheduling.engine.outcome import Outcome
from scheduling.engine.state import SchedulerState

# Seconds between two looks.
LOOK_S = 60.0


def reorganise(state: SchedulerState, out: Outcome) -> bool:
    """Move pods if the policy says so and a look is due; return whether any pod was moved."""
    look, now, policy = state.look, out.now, state.policy
    if not (policy.consolidation or policy.defragments):
        return False
    if look.seen == state.memo.occupied and now < look.again_at:
        return False
    if now < look.next_at:
        state.wake_at(look.next_at)
        return False
    search = MoveSearch(state, out)
    moves = consolidate(state, search) if policy.consolidation else 0
    full = moves == MOVES_A_LOOK
    if policy.defragments:
        more, may_go_on = defragment(state, search, now)
        moves += more
        full |= may_go_on
    look.seen, look.next_at = state.memo.occupied, now + LOOK_S
    look.again_at = look.next_at if full or search.is_over else search.min_runtime_ends_at
    if look.again_at < math.inf:
        state.wake_at(max(look.again_at, look.next_at))
    return moves > 0
