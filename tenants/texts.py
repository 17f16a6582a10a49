"""What Kant says about a wrong value, wherever it was given: in a form, a query parameter, a JSON
body.

Django and DRF word the same errors differently. The bases of Kant's forms, filters and serializers,
and the code that reads the errors of a row, use these texts instead.
"""

MISSING = "Must be given."
FILL_IN = "Fill this in."
EMPTY = "Must not be empty."
WHOLE_NUMBER = "Must be a whole number."
NUMBER = "Must be a number."
DIGITS = "Write the number in the digits 0 to 9, without separators."
TIME = "Must be a time, e.g. 2030-01-31T12:00:00Z."
UUID = "Must be a UUID, e.g. 0b8f3c52-6d0e-4f7a-9a41-5c2d7e8f9a10."
NO_NUL = "Must not contain a NUL character."


def at_least(least: object) -> str:
    return f"Must be at least {least}."


def at_most(most: object) -> str:
    return f"Must be at most {most}."


def between(least: object, most: object) -> str:
    return f"Must be from {least} to {most}."


def no_longer_than(most: object, things: str = "characters") -> str:
    return f"Must have at most {most} {things}."


def one_of(names: object) -> str:
    return f"Choose one of {names}."


# By the codes of Django's validators and form fields; placeholders are the parameters they fill in.
DJANGO = {
    "required": FILL_IN,
    "null": MISSING,
    "blank": EMPTY,
    "min_value": at_least("%(limit_value)s"),
    "max_value": at_most("%(limit_value)s"),
    "max_length": no_longer_than("%(limit_value)s"),
    "max_digits": no_longer_than("%(max)s", "digits"),
    "max_whole_digits": no_longer_than("%(max)s", "digits before the point"),
    "max_decimal_places": no_longer_than("%(max)s", "decimals"),
    "null_characters_not_allowed": NO_NUL,
}
# By the codes of DRF's fields.
DRF = {
    "required": MISSING,
    "null": "Must not be null. Leave it out, or give a value.",
    "blank": EMPTY,
    "empty": EMPTY,
    "min_value": at_least("{min_value}"),
    "max_value": at_most("{max_value}"),
    "max_length": no_longer_than("{max_length}"),
    "not_a_list": "Must be a list (JSON array).",
    "not_a_dict": "Must be an object (JSON object).",
}
