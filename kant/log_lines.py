"""Log lines of one line each, and no longer than somebody reads, whatever a request asked for."""

import logging

MOST = 200


class ShortArguments(logging.Filter):
    """Cuts the texts that a line repeats, e.g. the path of a request, and escapes line ends."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_short(each) for each in record.args)
        return True


def _short(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else value.encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST else f"{text[:MOST]}… ({len(value):,} characters)"
