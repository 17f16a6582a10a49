"""The embedded cluster as tests start it whose subject its start is not.

Its imports are 0.7 s of the CPU of each start, which hundreds of tests need. All else is as
`python -m scheduling.simcluster` has it: a process, a session, HTTP.
"""

import subprocess
import sys

from scheduling.cluster_process import ClusterProcess
from tests import forked

IMPORTED = ("scheduling.simcluster.cluster", "scheduling.simcluster.server", "uvloop", "yaml")


class ForkedCluster(ClusterProcess):
    """It is forked from a process that has imported what it runs."""

    def _launch(self, arguments):
        command = [sys.executable, "-m", "scheduling.simcluster", *arguments]
        pipe = subprocess.PIPE
        return forked.Forked(
            command, modules=IMPORTED, stdout=pipe, text=True, start_new_session=True
        )
