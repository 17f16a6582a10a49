import gc

# Nearly all that a start imports stays. To look through it for garbage again and again took a fifth
# of each start; `KantConfig.ready` leaves it out of what is looked through later.
gc.set_threshold(50_000)

from kant.celery import app as celery_app  # noqa: E402

__all__ = ["celery_app"]
