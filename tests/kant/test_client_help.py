"""The `--help` of every command describes each argument and each default, and has a correct
example."""

import argparse
import re
import shlex

import pytest

from kant.client.__main__ import _parser
from kant.client.flags.examples import EXAMPLES

# The only aside in a help text is "(default ...)", also if only the server knows the default.
ASIDE = re.compile(r"\((?!default)")


def leaves(parser, path=()):
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if parser.get_default("run"):
        yield path, parser
    for action in below:
        for name, command in action.choices.items():
            yield from leaves(command, (*path, name))


COMMANDS = dict(leaves(_parser()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_argument_has_its_help_and_its_default_in_one_wording(path):
    for action in COMMANDS[path]._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        name = action.option_strings or action.dest
        assert action.help, name
        assert not ASIDE.search(action.help), name
        told = isinstance(action.default, int | str) and action.default is not False
        if told and action.default not in ("", argparse.SUPPRESS):
            assert f"(default: {action.default})" in action.help, name


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_each_command_has_examples_that_it_takes(path):
    told = COMMANDS[path].format_help()
    for example in EXAMPLES[" ".join(path)]:
        assert f"\n  {example}\n" in f"{told}\n"
        kant, *words = shlex.split(example.partition(" | ")[0].partition(" > ")[0])
        assert kant == "kant"
        assert words[: len(path)] == list(path)
        _parser().parse_args(words)


def test_there_are_examples_of_commands_alone():
    assert EXAMPLES.keys() == {" ".join(path) for path in COMMANDS}


def test_what_is_changed_has_no_default_for_what_is_not_given():
    for path in ("change", "queue set", "webhooks set", "quota set"):
        for action in COMMANDS[tuple(path.split())]._actions:
            if action.dest != "output":
                assert "default:" not in action.help, (path, action.dest)
