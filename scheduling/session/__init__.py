"""The live loop's memory of a cluster."""

from scheduling.session.changes import Reopen
from scheduling.session.session import Pass, Session

__all__ = ["Pass", "Reopen", "Session"]
