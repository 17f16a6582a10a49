"""What the modules that look after a scope's jobs share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduling.engine.types import Policy
from scheduling.session.memory.live import LiveJob, Outbox


@dataclass(slots=True)
class SharedScope:
    """The jobs of a scope, what was gathered about them, and the settings that apply."""

    jobs: dict[str, LiveJob] = field(default_factory=dict)
    starting: dict[str, LiveJob] = field(default_factory=dict)  # placed, but not all of it runs yet
    out: Outbox = field(default_factory=Outbox)
    policy: Policy = field(default_factory=Policy)
    namespaces: Mapping[str, str] = field(default_factory=dict)  # {tenant: namespace of its pods}
    sees_since: float = 0.0  # when the connection to the cluster last came back
