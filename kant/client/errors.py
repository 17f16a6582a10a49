"""The error that ends a command, and the exit codes."""

from collections.abc import Sequence

FAILED, USAGE, NOT_FOUND, DENIED, NEVER_RUNS, TIMED_OUT = 1, 2, 3, 4, 5, 6

EXIT_CODES = """exit codes:
  0 done   1 failed   2 wrong usage or wrong fields   3 no such thing
  4 not signed in, or not allowed   5 the job can never run   6 waited too long"""


class ClientError(Exception):
    """An error shown to the user, one line each.

    `code`: the exit code. `problem`: the code of the problem document, "" if there was none.
    `faults`: (place, what is wrong there) for its fields.
    """

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
