"""A file whose time says when a process last worked, for a probe that cannot ask the process.

`python -I scheduling/services/scheduler/alive.py FILE SECONDS` exits with 1 if that is longer ago.
It imports nothing of Kant, since a probe runs every few seconds.
"""

import os
import sys
import time


def sign(path: str) -> None:
    """Note that the process works now; "" = no probe."""
    if path:
        with open(path, "ab"):
            os.utime(path)


def silent_for(path: str) -> float | None:
    """Return the seconds since it last worked; None = it never did."""
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return None


def main(path: str, within_s: str) -> int:
    silent = silent_for(path)
    if silent is None:
        print(f"{path} is not there: the process has not begun its work")
        return 1
    if silent > float(within_s):
        print(f"nothing was done for {silent:.0f} s: the process hangs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
