"""Start the embedded cluster by a fork, for tests that do not test its start.

The imports of each start take 0.7 s of CPU, and hundreds of tests need a cluster. Everything else
is as with `python -m scheduling.simcluster`: a process, a session, HTTP.
"""

import subprocess
import sys

from scheduling.cluster_process import ClusterProcess
from tests import forked

IMPORTED = ("scheduling.simcluster.cluster", "scheduling.simcluster.server", "uvloop", "yaml")


class ForkedCluster(ClusterProcess):
    """A cluster forked from a process that has imported its modules."""

    def _launch(self, arguments):
        command = [sys.executable, "-m", "scheduling.simcluster", *arguments]
        pipe = subprocess.PIPE
        return forked.Forked(
            command, modules=IMPORTED, stdout=pipe, text=True, start_new_session=True
        )
