"""The flags of `kant submit` come from the definition of a job's fields."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from kant.client import job_flags
from kant.client.submission import add_flags
from scheduling.api.job_serializers import JobChange, JobInput
from scheduling.job_fields import flags


def test_the_module_on_users_machines_is_made_from_the_definition():
    path = Path(job_flags.__file__)
    remedy = "python -m scheduling.job_fields.flags > kant/client/job_flags.py"
    assert path.read_text() == flags.module(), remedy


def test_every_flag_is_a_field_of_what_is_sent():
    sent = {flag.field for flag in job_flags.FLAGS}
    assert sent <= set(JobInput().fields)
    changed = {flag.field for flag in job_flags.FLAGS if flag.changes}
    assert changed == JobChange().fields.keys() - {"after", "after_ok", "pod_sets"}


@pytest.mark.parametrize("flag", job_flags.FLAGS, ids=lambda flag: flag.field)
def test_every_flag_is_read(flag):
    text = {
        "number": ["7"], "time": ["2m"], "cores": ["1.5"], "pair": ["a=b"],
        "secret_key": ["A=secret/key"], "device_claim": ["a=class:2 where 1 < 2"],
        "yes_or_no": [], "yes": [],
    }.get(flag.reads, ["word"])  # fmt: skip
    read = {
        "number": 7, "time": 120, "cores": 1500, "pair": [("a", "b")],
        "secret_key": [("A", {"secret": "secret", "key": "key"})],
        "device_claim": [("a", {"device_class": "class", "count": 2, "selectors": ["1 < 2"]})],
        "yes_or_no": True, "yes": True,
    }.get(flag.reads, ["word"] if flag.again else "word")  # fmt: skip
    for name in flag.names.split():
        parser = ArgumentParser()
        add_flags(parser)
        found = parser.parse_args([name, *text])
        assert getattr(found, flag.field) == read
