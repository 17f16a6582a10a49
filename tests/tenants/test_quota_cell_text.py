"""A quota as the text of one cell: which texts are valid, why others are refused, and the way
back."""

import re

import pytest

from tenants.models import Quota
from tenants.services.drafts.cell_text import ACCEPTED, cell_text, fields_typed, guaranteed_in
from tenants.services.drafts.wanted import makes_another, terms_beside, terms_in_words

READ = {
    "8": {"guaranteed": "8"},
    " 0.5 ": {"guaranteed": "0.5"},
    "8 isolated": {"guaranteed": "8", "mode": "isolated"},
    "8\tShared": {"guaranteed": "8", "mode": "shared"},
    "8 borrow 4": {"guaranteed": "8", "borrow_limit": "4"},
    "8 lend any": {"guaranteed": "8", "lend_limit": ""},
    "8 shared borrow 4 lend 2": {
        "guaranteed": "8",
        "mode": "shared",
        "borrow_limit": "4",
        "lend_limit": "2",
    },
    "8 lend 2.5 BORROW Any shared": {
        "guaranteed": "8",
        "mode": "shared",
        "borrow_limit": "",
        "lend_limit": "2.5",
    },
}
NUMBER = "Write a number of GPUs in the digits 0 to 9, e.g. 16."
THOUSANDS = "Write thousands without a separator, e.g. 1200."
DIGITS = "Write the number with the digits 0 to 9, e.g. 16."
REFUSED = {
    "": "Write 0 to guarantee none.",
    "many": f"{NUMBER} {ACCEPTED}",
    "1e3": f"{NUMBER} {ACCEPTED}",
    "8 16": NUMBER,
    "-1": "Write 0 or more GPUs.",
    "1,200": THOUSANDS,
    "1 200": THOUSANDS,
    "1\u00a0200 isolated": THOUSANDS,
    "1,200 shared": THOUSANDS,
    "1’200 borrow 4": THOUSANDS,
    "8 borrow 1,200": f"After borrow: {THOUSANDS} Or write any.",
    "8 lend 1 200 borrow 4": f"After lend: {THOUSANDS} Or write any.",
    "٨": DIGITS,
    "8 lend ٤": f"After lend: {DIGITS} Or write any.",
    "8 lend -1": "After lend: Write 0 or more GPUs. Or write any.",
    "8 lend some": f"After lend: {NUMBER} Or write any.",
    "8,5": "Write a part of a GPU with a point, e.g. 1.5.",
    "isolated": f"Write the guaranteed GPUs first. {ACCEPTED}",
    "isolated 8": f"Write the guaranteed GPUs first. {ACCEPTED}",
    "8 isolatd": f"“isolatd” cannot be read here. {ACCEPTED}",
    "8 GPUs shared": f"“GPUs” cannot be read here. {ACCEPTED}",
    "8 shared 4": f"“4” cannot be read here. {ACCEPTED}",
    "8 borrow 4 lnd 2": f"“lnd” cannot be read here. {ACCEPTED}",
    "8 borrow any lnd": f"“lnd” cannot be read here. {ACCEPTED}",
    "8 borrow": f"After borrow, write the most GPUs or any. {ACCEPTED}",
    "8 borrow lend 2": f"After borrow, write the most GPUs or any. {ACCEPTED}",
    "8 shared isolated": f"Give shared or isolated only once. {ACCEPTED}",
    "8 lend 2 lend 3": f"Give lend only once. {ACCEPTED}",
}


@pytest.mark.parametrize("text", READ)
def test_a_cell_names_fields_of_a_quota(text):
    assert fields_typed(text) == READ[text]
    assert guaranteed_in(text) == 1000 * float(READ[text]["guaranteed"])


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_read_is_refused_with_what_is_accepted(text):
    with pytest.raises(ValueError, match=f"^{re.escape(REFUSED[text])}$"):
        fields_typed(text)
    assert guaranteed_in(text) is None


def quota(milli, mode="shared", borrow=None, lend=None):
    return Quota(
        guaranteed_milli=milli, mode=mode, borrow_limit_milli=borrow, lend_limit_milli=lend
    )


WRITTEN = [
    (quota(8000), "8"),
    (quota(0), "0"),
    (quota(500), "0.5"),
    (quota(8000, "isolated"), "8 isolated"),
    (quota(8000, borrow=4000), "8 shared borrow 4"),
    (quota(8000, lend=0), "8 shared lend 0"),
    (quota(1_200_000, borrow=4000, lend=2001), "1200 shared borrow 4 lend 2.001"),
]


@pytest.mark.parametrize(("row", "text"), WRITTEN, ids=[text for _, text in WRITTEN])
def test_what_is_written_is_read_back_as_no_change(row, text):
    assert cell_text(row) == text
    assert not makes_another(row, text, {})


@pytest.mark.parametrize(("row", "text"), WRITTEN, ids=[text for _, text in WRITTEN])
def test_each_other_text_is_a_change(row, text):
    others = [f"{text}x", "7", "8 lend 1", "8 shared borrow 5", "9 isolated"]
    assert all(makes_another(row, other, {}) for other in others)
    assert makes_another(None, text, {})


def test_no_quota_is_no_text():
    assert cell_text(None) == ""


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("9", {"mode": "shared", "borrow_limit": "4"}),
        ("junk", {"mode": "shared", "borrow_limit": "4"}),
        ("9 shared", {"borrow_limit": "4"}),
        ("9 borrow any", {"mode": "shared"}),
        ("9 isolated", {}),
    ],
)
def test_what_the_text_says_replaces_what_the_draft_had(text, kept):
    assert terms_beside(text, {"mode": "shared", "borrow_limit": "4"}) == kept


def test_terms_are_told_in_one_order_whatever_order_the_database_gives_them_in():
    terms = {"lend_limit": "", "borrow_limit": "4", "mode": "shared"}
    now = quota(8000, "isolated", lend=1000)
    told = ["Mode Shared", "May borrow 4", "Lends no limit"]
    assert terms_in_words(terms, now) == told
    assert terms_in_words(dict(reversed(terms.items())), now) == told
