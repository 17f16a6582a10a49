"""Log lines of one line each, of readable length whatever a request contained."""

import logging

MOST = 200


class ShortArguments(logging.Filter):
    """Cuts texts that a line repeats, e.g. the path of a request, and escapes line ends."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_short(each) for each in record.args)
        return True


class ClientFaults(logging.Filter):
    """Reduces log entries about clients' mistakes (status 4xx) to one line.

    Their tracebacks show nothing that could be fixed, and anybody could fill the log with them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if 400 <= getattr(record, "status_code", 0) < 500:
            record.exc_info = record.exc_text = None
            if not record.args:  # Django puts e.g. the host into the text itself
                record.msg, record.args = "%s", (_short(str(record.msg)),)
        return True


def _short(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else value.encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST else f"{text[:MOST]}… ({len(value):,} characters)"
