"""`manage.py replay`: what it was asked for is looked at before anything is made."""

import pytest
from django.core.management import CommandError, call_command

from tenants.models import ApiToken

TRACE = "id,submitted_at,duration_s,gpus,pods\na,0,5,1,1\n"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--speed", "nan", "--speed must be a number greater than 0"),
        ("--speed", "inf", "--speed must be a number greater than 0"),
        ("--speed", "0", "--speed must be a number greater than 0"),
        ("--limit", "0", "--limit must be a number greater than 0"),
        ("--tenants", "-1", "--tenants must be a number greater than 0"),
        ("--url", "notaurl", "--url must be the address of Kant, e.g. http://127.0.0.1:8000"),
        ("--url", "127.0.0.1:8000", "--url must be the address of Kant"),
        ("--url", "http://x:99999", "--url must be the address of Kant"),
    ],
)
def test_options_that_cannot_be(org, tmp_path, option, value, message):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    with pytest.raises(CommandError, match=message):
        call_command("replay", str(path), f"{option}={value}")
    assert not ApiToken.objects.exists()
