"""Given cluster, quotas and jobs -> expected decisions, as tables (see scenario.py)."""

import pytest

from tests.engine.scenario import play

QUEUEING = {
    "strict FIFO: the head waits, so does everything behind it in its pool, no other pool": """
        nodes  H100: 8 8 | L4: 4
        quota  a H100 16 | a L4 4 | b H100 16 | b L4 4
        policy strict-fifo
        at 0
          + r      a 1x8 H100 -> starts
        at 1
          + head   a 2x8 H100 -> InsufficientGpus asked=16 free=8
          + small  b 1x1 H100 -> BehindInQueue ahead=head
          + other  b 1x1 L4   -> starts
        at 2
          ends r
          head  -> starts on n0 n1
          small -> InsufficientGpus
    """,
    "strict FIFO: a job that accepts another pool uses it and is not blocked": """
        nodes  H100: 8 | L4: 4
        quota  a H100 16 | a L4 4
        policy strict-fifo
        at 0
          + r     a 1x4 H100    -> starts
          + head  a 1x8 H100    -> InsufficientGpus
          + both  a 1x1 H100|L4 -> starts on n1
    """,
    "best-effort FIFO: what fits goes, the head can starve": """
        nodes  H100: 8 8
        quota  a H100 16 | b H100 16
        policy best-effort-fifo
        at 0
          + r      a 1x8 H100 -> starts
        at 1
          + head   a 2x8 H100 -> InsufficientGpus
          + small  b 1x1 H100 -> starts
    """,
    "order: priority, then submission, then size, then id": """
        nodes  H100: 1
        quota  a H100 8 | b H100 8
        policy strict-fifo
        at 0
          + late    a 1x1   H100 submitted_at=5
          + z       a 1x1   H100 submitted_at=4
          + y       b 1x1   H100 submitted_at=4
          + small   b 1x0.5 H100 submitted_at=4
          + urgent  a 1x1   H100 submitted_at=9 p10 -> starts
        at 1
          ends urgent
          small -> starts
        at 2
          ends small
          y -> starts
        at 3
          ends y
          z -> starts
        at 4
          ends z
          late -> starts
    """,
    "a policy is switched while jobs wait: nobody loses his place": """
        nodes  H100: 8
        quota  a H100 16
        policy strict-fifo
        at 0
          + r      a 1x4 H100 -> starts
          + head   a 1x8 H100 -> InsufficientGpus
          + small  a 1x4 H100 -> BehindInQueue
        at 1
          policy best-effort-fifo
          small -> starts
        at 2
          policy strict-fifo
          ends r small
          + late   a 1x1 H100 -> InsufficientGpus
          head -> starts
    """,
    "a bad job never blocks, whatever the policy": """
        nodes  H100: 8 8 | L4: 4
        quota  a H100 16 isolated | b H100 16 | b L4 2 shared borrow=1 | c H100 0 isolated
        policy strict-fifo
        at 0
          + none     a 1x0      H100 p9 -> Misconfigured
          + thrice   a 1x9      H100 p9 -> ExceedsCapacity
          + many     a 3x8      H100 p9 -> ExceedsCapacity
          + unknown  a 1x1      B300 p9 -> NoMatchingGpuType
          + foreign  x 1x1      H100 p9 -> Misconfigured
          + broke    c 1x1      H100 p9 -> ExceedsMaxQuota
          + ceiling  b 4x1      L4   p9 -> ExceedsMaxQuota asked=4 ceiling=2
          + noquota  a 1x1      L4   p9 -> ExceedsMaxQuota
          + good     a 1x8      H100    -> starts
    """,
    "a job with impossible times speaks for itself alone, before its like or behind": """
        nodes  H100: 8
        quota  a H100 64
        policy best-effort-fifo
        at 0
          + full   a 1x8 H100        -> starts
        at 50
          + before a 1x4 H100 s=-1   -> Misconfigured
          + right  a 1x4 H100 s=100  -> InsufficientGpus
          + behind a 1x4 H100 s=-1   -> Misconfigured
        at 60
          ends full
          right    -> starts
          behind   -> Misconfigured
    """,
    "a pool that can never hold a job does not speak for those that can": """
        nodes  A100: 4 4 | H100: 8 8 | L4: 8
        quota  a H100 99 | a A100 99 | a L4 99 | b H100 8 isolated | b A100 8
        policy best-effort-fifo
        at 0
          + r     a 1x8 H100      -> starts
          + s     b 1x8 H100      -> starts
          + any   a 1x8 A100|H100 -> InsufficientGpus gpu_model=H100 asked=8 free=0
          + wide  a 2x8 A100|H100 -> InsufficientGpus gpu_model=H100 asked=16 free=0
          + none  a 2x8 A100|L4   -> ExceedsCapacity
          + quota b 1x8 A100|H100 -> WaitingForQuota gpu_model=H100
        at 1
          ends r
          any  -> starts on n2
          wide -> InsufficientGpus gpu_model=H100 asked=16 free=0
    """,
    "nor does one whose nodes lack something beside the GPUs": """
        nodes  A100: 8/4000 8/4000 | H100: 8
        quota  a H100 99 | a A100 99
        policy best-effort-fifo
        at 0
          + r    a 1x8 H100 -> starts
          + any  a 1x8 A100|H100 cpu_milli=64000 -> InsufficientGpus gpu_model=H100 free=0
          + none a 1x8 A100      cpu_milli=64000 -> ExceedsCapacity most_on_a_node=4000
        at 1
          ends r
          any  -> starts on n2
    """,
    "what no node has beside its GPUs is told while all are taken, and holds nobody up": """
        nodes  H100: 8/4000
        quota  a H100 99
        policy strict-fifo
        at 0
          + r    a 1x8 H100                 -> starts
          + none a 1x4 H100 cpu_milli=64000 -> ExceedsCapacity asked_per_pod=64000
          + next a 1x8 H100 cpu_milli=4000  -> InsufficientGpus
        at 1
          ends r
          next -> starts
    """,
    "a pool that quota will never open does not hide that the others are too small": """
        nodes  A100: 8/4000 | H100: 8
        quota  a A100 8 isolated | a H100 4 isolated
        at 0
          + none a 1x8 A100|H100 cpu_milli=64000 -> ExceedsCapacity
    """,
    "a held job waits, and goes on from its old place": """
        nodes  H100: 8
        quota  a H100 24
        policy strict-fifo
        at 0
          + r      a 1x8 H100 -> starts
          + first  a 1x8 H100 -> InsufficientGpus
          + second a 1x8 H100 -> BehindInQueue
        at 1
          hold first
          first  -> OnHold
          second -> InsufficientGpus
        at 2
          release first
          ends r
          first  -> starts
          second -> InsufficientGpus
    """,
    "a requeued job backs off, avoids the blamed node, and keeps its place": """
        nodes  H100: 8 8
        quota  a H100 16
        policy strict-fifo, blame_s=30
        at 0
          + one a 1x8 H100 -> starts on n0
        at 1
          requeue one n0
          + two a 1x8 H100 -> starts on n0
          one -> BackingOff
        at 6
          one -> starts on n1
    """,
    "a node is blamed for a while only": """
        nodes  H100: 8
        quota  a H100 8
        policy strict-fifo, blame_s=30
        at 0
          + one a 1x8 H100 -> starts
        at 1
          requeue one n0
          one -> BackingOff
        at 10
          one -> InsufficientGpus
        at 31
          one -> starts
    """,
    "no gang: pod by pod, as many as fit; the rest follow": """
        nodes  H100: 8
        quota  a H100 30
        policy best-effort-fifo
        at 0
          + r    a 1x2  H100      -> starts
          + web  a 30x1 H100 pods -> starts 6 pods
        at 1
          ends r
          web -> starts 2 pods
        at 2
          pod-ends web 0
          web -> starts 1 pod
    """,
    "a gang of two GPU models starts in both pools or in none": """
        nodes  H100: 8 | L4: 4
        quota  a H100 8 | a L4 8
        policy best-effort-fifo
        at 0
          + r     a 1x1     L4      -> starts
          + both  a 1x8+4x1 H100+L4 -> InsufficientGpus
        at 1
          ends r
          both -> starts on n0 n1
    """,
    "an elastic gang starts with what there is, not below its minimum": """
        nodes  H100: 8
        quota  a H100 16
        policy best-effort-fifo
        at 0
          + r       a 1x5 H100       -> starts
          + elastic a 8x1 H100 min=4 -> InsufficientGpus
        at 1
          ends r
          elastic -> starts 8 pods
        at 2
          ends elastic
          + r2      a 1x3 H100       -> starts
          + again   a 8x1 H100 min=4 -> starts 5 pods
    """,
}

QUOTA = {
    "isolated: never more than guaranteed, and nothing is lent": """
        nodes  H100: 8 8
        quota  a H100 8 isolated | b H100 8
        policy best-effort-fifo
        at 0
          + a1 a 1x8 H100 -> starts
          + a2 a 1x1 H100 -> WaitingForQuota used=8 guaranteed=8 left=0
          + b1 b 1x8 H100 -> starts
          + b2 b 1x1 H100 -> WaitingForQuota used=8
    """,
    "shared: idle quota is lent up to both limits": """
        nodes  H100: 8 8 8
        quota  a H100 8 borrow=6 | b H100 8 lend=4 | c H100 8 lend=1
        policy best-effort-fifo
        at 0
          + own   a 1x8 H100 -> starts borrowing 0
          + first a 1x5 H100 -> starts borrowing 5
          + over  a 1x2 H100 -> BorrowLimitReached borrow_limit=6
          + last  a 1x1 H100 -> WaitingForQuota borrowed=5
    """,
    "fractions count as fractions": """
        nodes  L4: 4
        quota  a L4 1 isolated
        policy best-effort-fifo
        at 0
          + one   a 1x0.3 L4 -> starts
          + two   a 1x0.6 L4 -> starts
          + three a 1x0.2 L4 -> WaitingForQuota
        at 1
          ends one
          three -> starts
    """,
    "a child's use counts against every ancestor": """
        nodes  H100: 8 8
        quota  dept H100 8 isolated | t1 H100 6 | t2 H100 6 | other H100 8 isolated
        tree   t1 < dept | t2 < dept
        policy best-effort-fifo
        at 0
          + one   t1 1x6 H100 -> starts
          + two   t2 1x6 H100 -> WaitingForQuota tenant=dept left=2
          + three t2 1x2 H100 -> starts
    """,
    "a tenant without a row of its own draws on the department": """
        nodes  H100: 8
        quota  dept H100 4 isolated
        tree   team < dept
        policy best-effort-fifo
        at 0
          + one team 1x3 H100 -> starts
          + two team 1x2 H100 -> WaitingForQuota tenant=dept
    """,
    "an owner's own use is not held up by what it lent while GPUs are free": """
        nodes  H100: 8 8
        quota  a H100 4 | b H100 4
        policy best-effort-fifo
        at 0
          + borrower a 1x8 H100 -> starts borrowing 4
          + owner    b 1x4 H100 -> starts borrowing 0
          + more     a 1x1 H100 -> WaitingForQuota
    """,
    "several models: the next one when quota refuses the preferred": """
        nodes  H100: 8 | L4: 4
        quota  a H100 2 isolated | a L4 4 isolated
        policy best-effort-fifo
        at 0
          + one a 1x2 H100|L4 -> starts on n0
          + two a 1x2 H100|L4 -> starts on n1
    """,
    "no quota for the preferred model: the next one": """
        nodes  H100: 8 | L4: 4
        quota  a H100 2 isolated
        policy best-effort-fifo
        at 0
          + one   a 1x2 L4|H100      -> starts on n0
          + two   a 1x1 L4|H100      -> WaitingForQuota gpu_model=H100
          + never a 1x1+1x1 H100+L4  -> ExceedsMaxQuota gpu_model=L4
    """,
    "strict FIFO: what the head would borrow is borrowed by nobody behind it": """
        nodes  H100: 8 8
        quota  a H100 4 | b H100 4 | c H100 8
        policy strict-fifo
        at 0
          + c1  c 1x5 H100 -> starts
          + bg  a 2x6 H100 -> WaitingForQuota
          + b1  b 1x6 H100 -> BehindInQueue ahead=bg
          + b2  b 1x4 H100 -> BehindInQueue ahead=b1
          + c2  c 1x2 H100 -> starts
        at 1
          ends c1 c2
          bg -> starts borrowing 8
          b1 -> WaitingForQuota
    """,
    "best-effort FIFO: a large borrower can starve": """
        nodes  H100: 8 8
        quota  a H100 0 | b H100 0 | c H100 8
        policy best-effort-fifo
        at 0
          + s1  b 1x4 H100 -> starts
          + big a 1x8 H100 -> WaitingForQuota
          + s2  b 1x4 H100 -> starts
    """,
    "strict FIFO: a job that quota refuses holds back its own tenant only": """
        nodes  H100: 8 8
        quota  a H100 8 isolated | b H100 8 isolated
        policy strict-fifo
        at 0
          + r     a 1x4 H100 -> starts
          + big   a 1x8 H100 -> WaitingForQuota
          + small a 1x1 H100 -> BehindInQueue ahead=big
          + b1    b 1x4 H100 -> starts
    """,
}


@pytest.mark.parametrize("name", QUEUEING)
def test_queueing(name: str) -> None:
    play(QUEUEING[name])


@pytest.mark.parametrize("name", QUOTA)
def test_quota(name: str) -> None:
    play(QUOTA[name])
