"""What ends a command, and with which exit code."""

from collections.abc import Sequence

FAILED, USAGE, NOT_FOUND, DENIED, NEVER_RUNS, TIMED_OUT = 1, 2, 3, 4, 5, 6

EXIT_CODES = """exit codes:
  0 done   1 failed   2 wrong usage or wrong fields   3 no such thing
  4 not signed in, or not allowed   5 the job can never run   6 waited too long"""


class ClientError(Exception):
    """Shown to the user, a line each; `code` is the exit code, `problem` the code of the problem
    document, "" where there was none, `faults` (place, what is wrong there) of its fields."""

    def __init__(
        self,
        code: int,
        *lines: str,
        problem: str = "",
        faults: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(*lines)
        self.code = code
        self.lines = lines
        self.problem = problem
        self.faults = faults


def usage(text: str) -> ClientError:
    return ClientError(USAGE, text)
