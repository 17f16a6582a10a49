"""Secrets of webhooks, and signatures by them (https://www.standardwebhooks.com, version v1).

A secret is made anew from the site's key whenever it is needed, so no database and no backup of one
has it. It changes with the site's key.
"""

import base64
import hmac
from datetime import datetime, timedelta

from django.conf import settings

from webhooks.models import HookDelivery, Webhook

PREFIX = "whsec_"
# After a rotation the old secret signs as well for so long, for receivers to follow.
BOTH_HOLD = timedelta(hours=24)


def secret_of(hook: Webhook, number: int | None = None) -> str:
    """As receivers are given it: 256 bits in base64 behind a prefix. `number`: of an earlier
    secret."""
    number = hook.secret_number if number is None else number
    return PREFIX + base64.b64encode(_key(hook, number)).decode()


def signed(hook: Webhook, delivery: HookDelivery, now: datetime) -> dict[str, str]:
    """The headers of one try at `now`."""
    message, timestamp = f"msg_{delivery.pk.hex}", str(int(now.timestamp()))
    numbers = [hook.secret_number]
    if hook.previous_until is not None and now < hook.previous_until:
        numbers.append(hook.secret_number - 1)
    content = f"{message}.{timestamp}.{delivery.body}".encode()
    signatures = (hmac.digest(_key(hook, number), content, "sha256") for number in numbers)
    return {
        "webhook-id": message,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(s).decode()}" for s in signatures),
    }


def _key(hook: Webhook, number: int) -> bytes:
    made_of = f"webhook:{hook.pk.hex}:{number}".encode()
    return hmac.digest(settings.SECRET_KEY.encode(), made_of, "sha256")
