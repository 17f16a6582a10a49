"""What is made once in a run of the tests and copied by each that needs it."""

import fcntl
import os


def kept(tmp_path_factory, name, make):
    """The folder of that name, which `make(folder)` has filled: by the first of the processes among
    which the tests are shared out, while the others wait."""
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
