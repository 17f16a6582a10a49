"""What placements hold, in SQL: GPU-milli, of shares by memory to the billionth of one."""

from django.db.models import ExpressionWrapper, F, FloatField

from scheduling.engine.types import BEYOND

HELD = ExpressionWrapper(
    F("held_milli") + F("held_beyond") / float(BEYOND), output_field=FloatField()
)
