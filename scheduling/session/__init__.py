"""The live loop's memory of a cluster."""

from scheduling.session.changes import Inactive, Reopen
from scheduling.session.passes import Pass
from scheduling.session.session import Session

__all__ = ["Inactive", "Pass", "Reopen", "Session"]
