"""A file whose time says when a process was last at work, for a probe that cannot ask it anything:
`python -I scheduling/services/scheduler/alive.py FILE SECONDS` ends with 1 where that is longer
ago. It imports nothing of Kant, since a probe runs every few seconds."""

import os
import sys
import time


def sign(path: str) -> None:
    """The process works now; "" = nobody looks."""
    if path:
        with open(path, "ab"):
            os.utime(path)


def silent_for(path: str) -> float | None:
    """Seconds since it was last at work; None = never yet."""
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
