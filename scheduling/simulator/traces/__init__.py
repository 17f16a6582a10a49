"""Readers of recorded job traces: lines of text in, `TraceJob` values out, strict about every row.

A wrong row is named by line and column. `jobs_of` chooses the reader by the header; `arrivals`
turns the jobs into arrivals for the engine. docs/traces.md describes the format of Kant's own
traces.
"""

from scheduling.simulator.traces.jobs import TENANTS, TraceJob, arrivals
from scheduling.simulator.traces.predecessors import Predecessors
from scheduling.simulator.traces.registry import FORMATS, jobs_of
from scheduling.simulator.traces.table import BadRows, TraceFormatError

__all__ = [
    "FORMATS",
    "TENANTS",
    "BadRows",
    "Predecessors",
    "TraceFormatError",
    "TraceJob",
    "arrivals",
    "jobs_of",
]
