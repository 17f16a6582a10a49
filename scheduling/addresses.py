"""Checks of addresses that people enter."""

from urllib.parse import urlsplit


def is_http_address(text: str) -> bool:
    """Whether the text names a host by http:// or https://, e.g. https://10.0.0.1:6443."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # an invalid port is a ValueError
    except ValueError:
        return False
    strange = not text.isprintable() or any(c.isspace() for c in text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not strange
