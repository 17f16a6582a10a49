"""Make something once in a test run and let each test that needs it copy it."""

import fcntl
import os


def kept(tmp_path_factory, name, make):
    """Return the folder of that name, filled by `make(folder)`. The first test process to ask fills
    it while the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, draft = shared / f"kept-{name}", shared / f"kept-{name}.tmp"
    with (shared / f"kept-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft.mkdir()
            make(draft)
            draft.rename(folder)
    return folder
