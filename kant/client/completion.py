"""Shell completion, derived entirely from the parser, so that nothing is listed twice.

A shell's script asks `kant complete WORD…` for candidates for the last word: one per line, with its
meaning after a tab.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

ASK = "complete"

BASH = r"""_kant_complete() {
    local IFS=$'\n'
    COMPREPLY=($("${COMP_WORDS[0]/#\~/$HOME}" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _kant_complete kant
"""  # noqa: E501

ZSH = r"""#compdef kant
_kant() {
    local -a found
    found=("${(@f)$(${~words[1]} complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found:#}")
    if (( ! $#found )); then
        _files
        return
    fi
    found=("${(@)found//:/\\:}")
    found=("${(@)found/$'\t'/:}")
    _describe -t values kant found
}
compdef _kant kant
"""

FISH = r"""function __kant_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l found ($words[1] complete $words[2..-1] "$last" 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path "$last"
    end
end
complete -c kant -f -a '(__kant_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

Found = Iterator[tuple[str, str]]
Values = Mapping[str, Callable[[str], Found]]


def script(args: argparse.Namespace) -> None:
    print(SCRIPTS[args.shell], end="")


def candidates(parser: argparse.ArgumentParser, words: Sequence[str], values: Values) -> Found:
    """Yield candidates for the last of `words`, with their meanings.

    `values`: by metavar, functions that return the argument values with a given beginning.
    """
    # argparse gives access to a parser's content only through members with an underscore.
    flags, awaited, options = parser._option_string_actions, None, True
    positionals = _positionals(parser)
    *before, last = words
    for word in before:
        if awaited is not None:
            if word != "=":  # bash passes it as a word of its own
                awaited = None
        elif options and word == "--":
            options = False
        elif options and word.startswith("-"):
            action = flags.get(word)
            awaited = action if action is not None and action.nargs != 0 else None
        elif positionals and isinstance(positionals[0], argparse._SubParsersAction):
            if (chosen := positionals[0].choices.get(word)) is None:
                return
            flags, positionals = chosen._option_string_actions, _positionals(chosen)
        elif positionals and positionals[0].nargs not in ("*", "+"):
            positionals = positionals[1:]
    if awaited is not None:
        yield from _values(awaited, last, values)
    elif options and last.startswith("-"):
        for flag, action in flags.items():
            if flag.startswith(last):
                yield flag, action.help or ""
    elif positionals:
        yield from _values(positionals[0], last, values)


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _values(action: argparse.Action, last: str, values: Values) -> Found:
    if isinstance(action, argparse._SubParsersAction):
        for choice in action._choices_actions:
            if choice.dest.startswith(last):
                yield choice.dest, choice.help or ""
    elif action.choices is not None:
        yield from ((str(c), "") for c in action.choices if str(c).startswith(last))
    elif action.metavar in values:
        yield from values[str(action.metavar)](last)
