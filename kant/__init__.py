import gc

# Nearly everything imported at start stays for good. Scanning it for garbage again and again took a
# fifth of each start; `KantConfig.ready` exempts it from later scans.
gc.set_threshold(50_000)

from kant.celery import app as celery_app  # noqa: E402

__all__ = ["celery_app"]
