"""What all that look after the jobs of a scope share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.types import Policy
from scheduling.session.memory.live import LiveJob, Outbox


@dataclass(slots=True)
class SharedScope:
    """The jobs of a scope of a cluster, what is told of them, and by which settings."""

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    starting: dict[str, LiveJob] = field(default_factory=dict)  # placed, not all of it running yet
    out: Outbox = field(default_factory=Outbox)
    policy: Policy = field(default_factory=Policy)
    namespaces: Mapping[str, str] = field(default_factory=dict)  # {tenant: where its pods are made}
    sees_since: float = 0.0  # when the connection to the cluster came back last
