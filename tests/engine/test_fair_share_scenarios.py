"""Fairness between tenants and between their users, as tables (see scenario.py)."""

import pytest

from tests.engine.scenario import play

SCENARIOS = {
    "among equal priorities the smallest dominant share by weight goes first": """
        nodes  H100: 8 | L4: 8
        quota  a H100 64 | b H100 64 | a L4 64 | b L4 64
        tenant b weight=4
        policy best-effort-fifo, fair_share=yes
        at 0
          + a1 a 1x2 H100 -> starts
          + b1 b 1x4 H100 -> starts
          + r  a 1x2 H100 -> starts
        at 0.5
          + a2 a 1x2 H100 -> InsufficientGpus
          + b2 b 1x2 H100 -> InsufficientGpus
          + up a 1x8 H100 p1 -> InsufficientGpus
        at 1
          ends r
          b2 -> starts
    """,
    "dominant shares over two resources come out as in the paper of DRF": """
        nodes  C: 3 3 3 | M: 6 6 6
        quota  a C 99 | a M 99 | b C 99 | b M 99
        policy best-effort-fifo, fair_share=yes
        at 0
          + a1 a 1x1+4x1 C+M -> starts
          + a2 a 1x1+4x1 C+M -> starts
          + a3 a 1x1+4x1 C+M -> starts
          + a4 a 1x1+4x1 C+M -> InsufficientGpus
          + b1 b 3x1+1x1 C+M -> starts
          + b2 b 3x1+1x1 C+M -> starts
          + b3 b 3x1+1x1 C+M -> InsufficientGpus
    """,
    "shares are read after each start, by weight": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64 | c H100 64
        tenant a weight=2
        policy strict-fifo, fair_share=yes
        at 0
          + a1 a 1x1 H100 -> starts
          + a2 a 1x1 H100 -> starts
          + a3 a 1x1 H100 -> starts
          + a4 a 1x1 H100 -> starts
          + a5 a 1x1 H100
          + b1 b 1x1 H100 -> starts
          + b2 b 1x1 H100 -> starts
          + b3 b 1x1 H100
          + c1 c 1x1 H100 -> starts
          + c2 c 1x1 H100 -> starts
          + c3 c 1x1 H100
    """,
    "a department stands against its sibling first, with its weight, then its members": """
        nodes  H100: 8 8
        tree   x < dept | lab < dept | y < lab | z < lab
        quota  x H100 64 | y H100 64 | z H100 64 | b H100 64
        tenant dept weight=3
        tenant lab weight=2
        tenant z weight=3
        policy backfill, fair_share=yes, usage_half_life_s=1000
        at 0
          + x1 x 1x2 H100 -> starts
          + x2 x 1x2 H100 -> starts
          + x3 x 1x2 H100
          + y1 y 1x2 H100 -> starts
          + y2 y 1x2 H100
          + z1 z 1x2 H100 -> starts
          + z2 z 1x2 H100 -> starts
          + z3 z 1x2 H100 -> starts
          + z4 z 1x2 H100
          + b1 b 1x2 H100 -> starts
          + b2 b 1x2 H100 -> starts
          + b3 b 1x2 H100
    """,
    "jobs of a department itself stand among its members": """
        nodes  H100: 6
        tree   x < dept
        quota  x H100 64 | dept H100 64
        tenant x weight=2
        policy best-effort-fifo, fair_share=yes
        at 0
          + d1 dept 1x1 H100 -> starts
          + d2 dept 1x1 H100 -> starts
          + d3 dept 1x1 H100
          + x1 x 1x1 H100 -> starts
          + x2 x 1x1 H100 -> starts
          + x3 x 1x1 H100 -> starts
          + x4 x 1x1 H100 -> starts
          + x5 x 1x1 H100
    """,
    "users, and an array, on an empty cluster": """
        nodes  H100: 4
        quota  a H100 64
        policy strict-fifo, fair_share=yes, fair_users=yes
        at 0
          + x1 a 1x1 H100 user=x array=many -> starts
          + x2 a 1x1 H100 user=x array=many -> starts
          + x3 a 1x1 H100 user=x array=many
          + y1 a 1x1 H100 user=y -> starts
          + y2 a 1x1 H100 user=y -> starts
    """,
    "what was used in the past counts beside what is held": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy strict-fifo, fair_share=yes, usage_half_life_s=100
        at 0
          + a0 a 1x8 H100 -> starts
        at 100
          ends a0
          + a1 a 1x1 H100 -> starts
          + a2 a 1x1 H100 -> starts
          + a3 a 1x1 H100
          + b1 b 1x1 H100 -> starts
          + b2 b 1x1 H100 -> starts
          + b3 b 1x1 H100 -> starts
          + b4 b 1x1 H100 -> starts
          + b5 b 1x1 H100 -> starts
          + b6 b 1x1 H100 -> starts
          + b7 b 1x1 H100
    """,
    "a node is kept for the tenant whose turn it is, whatever fits there meanwhile": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64
        policy best-effort-fifo, fair_share=yes
        at 0
          + b1 b 1x2 H100 -> starts on n0
          + b2 b 1x2 H100 -> starts on n0
          + b3 b 1x2 H100 -> starts on n1
          + b4 b 1x2 H100 -> starts on n1
        at 100
          + a1 a 1x4 H100 -> InsufficientGpus kept_nodes=1
          + a2 a 1x4 H100 -> InsufficientGpus asked=4
          + b5 b 1x2 H100 -> InsufficientGpus asked=2
        at 170
          ends b1
          b5 -> ReservedForHead ahead=a1
        at 180
          ends b3
          b5 -> starts on n1
        at 190
          ends b2
          a1 -> starts on n0
        at 200
          ends b4
          + b6 b 1x2 H100 -> starts on n1
    """,
    "who would hold more with its job has no turn": """
        nodes  H100: 4 4
        quota  a H100 64 | b H100 64
        tenant a weight=0.5
        policy best-effort-fifo, fair_share=yes
        at 0
          + a1 a 1x2 H100 -> starts on n0
          + b1 b 1x2 H100 -> starts on n0
          + b2 b 1x2 H100 -> starts on n1
          + b3 b 1x2 H100 -> starts on n1
        at 100
          ends a1
          + a2 a 1x4 H100 -> InsufficientGpus asked=4
          + b4 b 1x2 H100 -> starts on n0
    """,
    "one of higher priority does not wait for a turn": """
        nodes  H100: 4
        quota  a H100 64 | b H100 64
        tenant a weight=2
        policy best-effort-fifo, fair_share=yes
        at 0
          + b1 b 1x2 H100 -> starts
          + b2 b 1x2 H100 -> starts
        at 100
          ends b1
          + a1 a 1x4 H100 -> InsufficientGpus kept_nodes=1
          + b3 b 1x1 H100 -> ReservedForHead ahead=a1
          + b4 b 1x1 H100 p1 -> starts
        at 110
          policy best-effort-fifo
          b3 -> starts
    """,
    "past use fades": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy strict-fifo, fair_share=yes, usage_half_life_s=100
        at 0
          + a1 a 1x8 H100 -> starts
        at 100
          ends a1
          + b1 b 1x8 H100 -> starts
        at 110
          ends b1
          + a2 a 1x8 H100
          + b2 b 1x8 H100 -> starts
          a2 -> InsufficientGpus
    """,
    "of the users of a tenant the one with the smallest share goes first": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo, fair_share=yes, fair_users=yes
        at 0
          + x1 a 1x2 H100 user=x -> starts
          + x2 a 1x2 H100 user=x -> starts
          + y1 a 1x1 H100 user=y -> starts
          + b1 b 1x3 H100 user=x -> starts
        at 1
          + x3 a 1x1 H100 user=x -> InsufficientGpus
          + n1 a 1x1 H100        -> InsufficientGpus
          + y2 a 1x1 H100 user=y -> InsufficientGpus
          + n2 a 1x1 H100        -> InsufficientGpus
          + up a 1x8 H100 user=x p1 -> InsufficientGpus
        at 2
          ends b1
          n1 -> starts
          n2 -> starts
          y2 -> starts
        at 3
          ends x1
          + y3 a 1x1 H100 user=y -> InsufficientGpus
          + z1 a 1x2 H100 user=z -> starts
          x3 -> InsufficientGpus
    """,
    "tenants go before users": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy best-effort-fifo, fair_share=yes, fair_users=yes
        at 0
          + a1 a 1x4 H100 user=x -> starts
          + b1 b 1x1 H100 user=x -> starts
          + b2 b 1x2 H100 user=y -> starts
          + r  a 1x1 H100 user=x -> starts
        at 1
          + a2 a 1x1 H100 user=new -> InsufficientGpus
          + b3 b 1x1 H100 user=y   -> InsufficientGpus
          + b4 b 1x1 H100 user=x   -> InsufficientGpus
        at 2
          ends r
          b4 -> starts
        at 3
          ends b2
          b3 -> starts
          a2 -> starts
    """,
    "what users used in the past fades": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo, fair_share=yes, fair_users=yes, usage_half_life_s=100
        at 0
          + x1 a 1x8 H100 user=x -> starts
        at 100
          ends x1
          + y1 a 1x8 H100 user=y -> starts
        at 110
          ends y1
          + x2 a 1x8 H100 user=x -> InsufficientGpus
          + y2 a 1x8 H100 user=y -> starts
    """,
    "a job is told that another user goes first": """
        nodes  H100: 8
        quota  a H100 64 | b H100 64
        policy strict-fifo, fair_share=yes, fair_users=yes
        at 0
          + x1 a 1x4 H100 user=x -> starts
          + y1 a 1x2 H100 user=y -> starts
        at 1
          + x2 a 1x2 H100 user=x -> BehindInQueue ahead=y2 user_share=0.5 user_share_ahead=0.25
          + y2 a 1x4 H100 user=y -> InsufficientGpus asked=4
          + y3 a 1x1 H100 user=y -> BehindInQueue ahead=y2
          + b1 b 1x2 H100 user=x -> starts
    """,
    "the order of users may be switched on and off": """
        nodes  H100: 8
        quota  a H100 64
        policy strict-fifo, fair_share=yes
        at 0
          + x1 a 1x8 H100 user=x -> starts
          + x2 a 1x8 H100 user=x -> InsufficientGpus
          + y1 a 1x8 H100 user=y -> BehindInQueue ahead=x2
        at 1
          policy strict-fifo, fair_share=yes, fair_users=yes
          x2 -> BehindInQueue ahead=y1 user_share=1 user_share_ahead=0
          y1 -> InsufficientGpus
        at 2
          policy strict-fifo, fair_share=yes
          x2 -> InsufficientGpus
          y1 -> BehindInQueue ahead=x2
        at 3
          policy strict-fifo, fair_share=yes, fair_users=yes
          ends x1
          x2 -> starts
          y1 -> InsufficientGpus
    """,
    "an overdue head lets no older job pass, which it could not preempt": """
        nodes  H100: 8
        quota  a H100 64
        policy backfill, fair_share=yes, fair_users=yes, preemption=backfill, backfill_after_s=10
        at 0
          + x1 a 1x4 H100 user=x -> starts
          + x2 a 1x3 H100 user=x -> starts
        at 1
          + x3  a 1x4 H100 user=x -> InsufficientGpus
          + big a 1x8 H100 user=y -> InsufficientGpus
          + x4  a 1x1 H100 user=x -> starts
        at 20
          ends x1
          + x5  a 1x1 H100 user=x
          x3  -> ReservedForHead ahead=big
          x5  -> starts
        at 90
          ends x2
          x4  -> preempted for big
          x5  -> preempted for big
        at 91
          gone x4
          gone x5
          big -> starts
    """,
    "a service that was next in line may lose its place to who comes before its turn": """
        nodes  H100: 8 8
        quota  a H100 0 | b H100 24 | x H100 16
        policy best-effort-fifo, fair_share=yes, preemption=reclaim, min_runtime_s=0
        at 0
          + own  b 1x8 H100 -> starts
          + web  a 2x8 H100 pods -> starts 1 pods
        at 10
          + mine b 1x8 H100 -> WaitingForPreemption
          + more b 1x4 H100 -> InsufficientGpus
          web -> preempted for mine
        at 11
          pod-ends web 0
          mine -> starts
          more -> InsufficientGpus
    """,
    "of a tenant's quota": """
        nodes  H100: 16
        quota  a H100 4 isolated
        policy strict-fifo, fair_share=yes, fair_users=yes
        at 0
          + x1 a 1x2 H100 user=x -> starts
          + x2 a 1x2 H100 user=x -> starts
          + x3 a 1x2 H100 user=x -> WaitingForQuota
          + x4 a 1x1 H100 user=x -> BehindInQueue ahead=x3
        at 1
          + y1 a 1x2 H100 user=y -> WaitingForQuota
          x3 -> BehindInQueue ahead=y1 user_share=0.25
        at 2
          ends x1
          y1 -> starts
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_fair_share(name: str) -> None:
    play(SCENARIOS[name])
