"""Finds and hides parts of a job's variables and command lines that look like secrets.

It guesses by names, places and shapes: `--password x`, `TOKEN=x`, `mysql -px`, `user:x@host`, an
authorization header, the token formats of services. Each text is scanned a bounded number of times
from start to end, so the time grows only with its length.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from scheduling.job_fields.shell_words import Word, words_of

HIDDEN: Final = "(hidden)"
MOST: Final = 65_536  # characters that are examined; a longer text is hidden whole
_DEEPEST: Final = 4  # nesting of quoted scripts in scripts
_LONGEST: Final = 128  # characters of a name that are examined

_NAMES = re.compile(
    r"PASSW|PASSPHRASE|PWD|SECRET|CRED(?!ITS?(?![A-Z]))|PRIVATE|COOKIE|WEBHOOK|AUTHORIZATION|BEARER"
    r"|CONN(?:ECTION)?_?STR"
    # Only as whole words, because other words contain them: PATH, AUTHOR, BYPASS.
    r"|(?<![A-Z])(?:PW|PAT|AUTH|DSN|SAS|JWT|OTP)(?![A-Z])"
    r"|(?<!BY)(?<!COM)(?<!SUR)(?<!TRES)PASS(?![A-Z])",
    re.IGNORECASE,
)
_KEY = re.compile(r"KEY", re.IGNORECASE)
# In flags and inside texts "key" alone says little: --primary-key, key=len.
_OWN_KEY = re.compile(
    r"(?:API|ACCESS|ACCOUNT|SECRET|PRIVATE|AUTH|SSH|TLS|SSL|ENCRYPTION|SIGNING|SIGNATURE|LICEN[CS]E"
    r"|MASTER|SERVICE|STORAGE|SHARED|CLIENT|CONSUMER|SUBSCRIPTION|DEPLOY|ADMIN|HMAC|AES|RSA|WANDB"
    r"|OPENAI|ANTHROPIC|HF|AWS|GCP|AZURE|COMET|NEPTUNE|NGC|SWANLAB|APP)[_.-]?KEY(?!WORD|S?PACE)",
    re.IGNORECASE,
)
# Tokens of texts, not of access: max-tokens, token_budget, pad-token, tokenizer.
_TOKEN = re.compile(r"TOKEN(?!I[SZ])", re.IGNORECASE)
_OF_TEXTS = re.compile(
    r"(?<![A-Z])(?:PAD|EOS|BOS|UNK|MASK|CLS|SEP|EOT|SPECIAL|IMAGE|VIDEO|AUDIO|STOP|START|BEGIN|END"
    r"|MAX|MIN|NUM|N|PER|NEXT|FIRST|LAST|PREFIX|SUFFIX|FIM|THINK|PROMPT|CONTEXT|DECODER|INPUT"
    r"|OUTPUT|EXTRA|ADDED|TRAIN|BATCH|TOTAL|VOCAB)[_.-]?TOKENS?(?![A-Z])"
    r"|TOKENS?[_.-]?(?:BUDGET|COUNT|LIMIT|LEN|LENGTH|SIZE|NUM|IDS?|TYPE|PER|DROP|LEVEL|MASK|EMBED"
    r"|CLASS|MERG|PAD|BATCH|DISPATCH|BUCKET|RATE|LOSS|THROUGHPUT)",
    re.IGNORECASE,
)
# Names that say where a secret is, not what it is.
_WHERE = re.compile(
    r"(?:FILES?|PATH|DIR|STDIN|NAME|FIELD|LENGTH|TIMEOUT|TTL|TYPE|METHOD|MODE|ENABLED|PORT|USER"
    r"|SCHEME|REALM|PROVIDER|PLUGIN|FD|JAR)\Z",
    re.IGNORECASE,
)
_FIGURE = re.compile(
    r"[+-]?[\d.,_]{0,7}(?:e[+-]?\d{1,3})?[kmbtg]?i?|true|false|none|null|auto", re.I
)
_CALL = re.compile(r"[A-Za-z_][\w.]*+\(")  # of code, where a secret would be quoted
_SWITCH: Final = frozenset(
    {"true", "false", "none", "null", "bearer", "basic", "digest", "negotiate"}
)
_REFERENCE = re.compile(r"\$\w+|\$\{\w+\}|%\w+%|\$\([\w.:-]+\)")

# Token formats of services, by their prefixes.
_GIVEN_OUT = (
    r"(?<![A-Za-z0-9])(?:"
    r"gh[oprsu]_\w{16,}|github_pat_\w{16,}|gl(?:pat|dt|rt|soat|ptt)-[\w.-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|api_org_[A-Za-z0-9]{16,}|(?:sk|rk|pk)_(?:live|test)_\w{10,}|xox[a-z]-[\w-]{16,}"
    r"|sk-(?=[\w-]{0,60}[0-9A-Z])[\w-]{16,}|(?:AKIA|ASIA|AROA)[A-Z0-9]{12,}|AIza[\w-]{16,}"
    r"|eyJ[\w-]{14,}(?:\.[\w-]*){0,4}|ya29\.[\w-]{16,}|SG\.[\w-]{16,}(?:\.[\w-]*)?"
    r"|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|dckr_pat_[\w-]{16,}|do[opr]_v1_\w{16,}"
    r"|hv[sbr]\.[\w-]{16,}|nvapi-[\w-]{16,}|gsk_\w{16,}|r8_\w{16,}|glsa_\w{16,}|xai-\w{16,}"
    r"|wandb_v1_\w{16,}|tskey-[\w-]{12,}|lin_api_\w{16,}|shp(?:at|ss|ca|pa)_\w{16,}|ATATT[\w=-]{16,}"
    r"|dapi[0-9a-f]{32}|rpa_\w{16,}|ntn_\w{16,}|PMAK-[\w-]{16,}|AGE-SECRET-KEY-\w{16,}"
    r")[\w.+/=~-]*"
)
_QUOTE = r"(?:\\{0,8}[\"'])?"
_HEADER = r"(?:(?:proxy-)?authorization|(?:set-)?cookie)"
_SCHEME = r"(?:(?:bearer|basic|token|digest|apikey|negotiate)[ ]++)?+"
_PATTERNS: Final = [
    re.compile(pattern, flags)
    for pattern, flags in (
        (
            r"(?P<hide>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[\s\S]*?"
            r"(?:-----END [A-Z0-9 ]{0,40}KEY-----|\Z))",
            0,
        ),
        # A password in an address is hidden and its user stays; a token in the user's place is
        # hidden.
        (r"://[^\s/?#@:\"']*+:(?P<hide>[^\s/?#\"']*)@", 0),
        (r"://[^\s/?#@:\"']{0,64}:(?!\d{1,5}[/?#])(?P<hide>[^\s@\"']{1,256})@", 0),
        (r"://(?P<hide>[^\s/?#@:\"']{16,}+|(?=[a-zA-Z_.-]{0,40}\d)[^\s/?#@:\"']{8,}+)@", 0),
        (r"(?<![\w.+%:-])[\w.+%-]{1,64}:(?P<hide>[^\s@/\"',;]{1,200})@(?!sha\d)[A-Za-z\d\[]", 0),
        (rf"(?P<hide>{_GIVEN_OUT})", 0),
        (r"\bhooks\.slack\.com/services/(?P<hide>[^\s\"']+)", re.I),
        (rf"\A{_HEADER}\s*+:\s*+{_SCHEME}(?P<hide>(?!\$)[\s\S]+)", re.I),
        (rf"[\"']{_HEADER}\s*+:\s*+{_SCHEME}(?P<hide>(?!\$)[^\"'\\\n]++)", re.I),
        (rf"\b{_HEADER}{_QUOTE}\s*+[=:]\s*+{_QUOTE}{_SCHEME}(?P<hide>(?!\$)[^\s\"'\\]++)", re.I),
        (r"\bBearer\s++(?P<hide>(?!\$)[^\s\"'\\]{3,}+)", 0),
        (r"\bbasic\s++(?P<hide>(?=[\w+/=]{0,60}[\d=])[\w+/=]{8,}+)", re.I),
        (r"[?&;](?:sig|(?:x-amz-|x-goog-)?signature)=(?P<hide>[^\s&\"']++)", re.I),
        (r"\blogin\(\s*+(?:\w{1,40}\s*+=\s*+)?[\"'\\]++(?P<hide>[^\"'\\]++)", re.I),
    )
]
# NAME=value, "name": "value", name => value, environ["NAME"] = value, putenv("NAME", "value"). A
# flag may also have its value after a blank.
_HEAD = re.compile(
    r"(?<![\w.-])(?P<name>[\w-][\w.-]*+)"
    r"(?:\\{0,8}[\"']\s*+,(?=\s*+\\{0,8}[\"'])\s*+|(?:\\{0,8}[\"'])?\]?\s*+(?:[:?+]?=>?|:)\s*+"
    r"|(?P<blank>\s++)(?!--|-[A-Za-z](?:\s|\Z)))"
)
# A value: quoted up to the matching quote, otherwise up to the end of a word in a shell or an
# address.
_VALUE = re.compile(
    r"\"(?:[^\"\\]|\\[\s\S])*+\"?|'(?:[^'\\]|\\[\s\S])*+'?"
    r"|(?P<q>\\{1,8}+[\"'])(?:(?!(?P=q))[\s\S])*+(?:(?P=q))?"
    r"|(?:[^\s\"'&;|<>\\]|\\[\s\S]|(?<=[^\s=:,(])[\"'][^\s\"']*+[\"']?)++"
)
_GIVEN = re.compile(r"(?P<dashes>-*)(?P<name>[A-Za-z_][\w.-]{0,127})=")

# Programs with flags that take a secret; in pairs such as user:secret only after the colon.
_SQL = (
    *("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mysqlpump", "mysqlcheck"),
    *("mysqlsh", "mariadb", "mariadb-dump", "mariadb-admin", "mariadb-import", "mycli"),
)
_ATTACHED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_SQL, "p"),
    **dict.fromkeys(("7z", "7za", "7zr", "rar", "unrar"), "p"),
    "sshpass": "p",
    "sqlcmd": "P",
    "redis-cli": "a",
    "unzip": "P",
    "ldapsearch": "w",
}
_NEXT: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(_SQL, frozenset({"-p"})),
    **dict.fromkeys(
        ("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport", "mongoimport"),
        frozenset({"-p"}),
    ),
    "sshpass": frozenset({"-p"}),
    "sqlcmd": frozenset({"-P"}),
    "bcp": frozenset({"-P"}),
    "mosquitto_pub": frozenset({"-P"}),
    "mosquitto_sub": frozenset({"-P"}),
    "redis-cli": frozenset({"-a"}),
    "zip": frozenset({"-P"}),
    "unzip": frozenset({"-P"}),
    "openssl": frozenset({"-k", "-K", "-pass", "-passin", "-passout"}),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami"), frozenset({"-w"})),
    "swanlab": frozenset({"-k"}),
    "doctl": frozenset({"-t"}),
    "curl": frozenset({"--oauth2-bearer", "-b", "--cookie"}),
    "clickhouse-client": frozenset({"-p"}),
    "cypher-shell": frozenset({"-p"}),
    "snowsql": frozenset({"-p"}),
    "lftp": frozenset(),
}
_PAIR: Final[Mapping[str, frozenset[str]]] = {
    "curl": frozenset({"-u", "-U", "-E", "--user", "--proxy-user", "--cert"}),
    **dict.fromkeys(("http", "https", "xh"), frozenset({"-a", "--auth"})),
    "ab": frozenset({"-A", "-P"}),
    "lftp": frozenset({"-u", "--user"}),
    "smbclient": frozenset({"-U", "--user"}),
    "siege": frozenset(),
}
_BUNDLE = re.compile(r"-[sSkLfviIgOjnN#0-9]*[uU](?P<rest>.*)", re.DOTALL)  # curl -sSu
_SEPARATES = re.compile(r"[:,%]")
# Programs that take a key as the word after `login`.
_SIGN_IN: Final = frozenset(
    {"wandb", "weave", "vault", "bao", "comet", "swanlab", "neptune", "hf", "huggingface-cli",
     "modelscope", "runpodctl", "railway", "supabase"}
)  # fmt: skip
_LOGIN_FLAGS: Final = frozenset({"--host", "--base-url", "--entity", "-e", "--method", "-method"})
_LOGIN_P: Final = frozenset(
    {"docker", "podman", "nerdctl", "helm", "oc", "crane", "skopeo", "buildah", "az", "regctl",
     "oras", "singularity", "apptainer", "heroku", "cf", "argocd"}
)  # fmt: skip
# Commands that take a name and then its value, or an address and then both halves of a key.
_SETS: Final = frozenset({"set", "setenv", "setx", "put", "add", "alias", "host"})
_MINIO: Final = frozenset({"mc", "mcli"})
_BEHIND_ADDRESS: Final = "behind an address"
_KNOWN: Final = frozenset({*_ATTACHED, *_NEXT, *_PAIR, *_SIGN_IN, *_LOGIN_P, *_MINIO})
# Programs that read a secret from what is piped into them.
_READS_ONE: Final = re.compile(
    r"--(?:password|api-key|token|passphrase)-stdin|--with-token|--stdin|chpasswd|passwd|vncpasswd"
    r"|kinit|--passphrase-fd"
)
_RUNS_SCRIPT: Final = re.compile("-[a-z]{0,4}c")  # sh -c "…", bash -lc "…"
_SAYS: Final = frozenset({"echo", "printf"})
_BEFORE_VARIABLES: Final = frozenset({"export", "env", "declare", "typeset", "local", "readonly"})


# --- names and variables --------------------------------------------------------------------------
def _named(name: str, value: str, *, variable: bool) -> bool:
    """Whether a value of this name is a secret.

    `variable`: it is an environment variable, of which any KEY counts.
    """
    if _NAMES.search(name):
        times = name.lower().endswith("pass") and len(value) < 3 and value.isdigit()
        return bool(value) and not (times or value.lower() in _SWITCH or _WHERE.search(name))
    if _WHERE.search(name):
        return False
    if _TOKEN.search(name) and not _OF_TEXTS.search(name):
        return not _FIGURE.fullmatch(value)
    if (_KEY if variable else _OWN_KEY).search(name):
        return not _FIGURE.fullmatch(value)
    return False


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks secret by its name or value, or is too long to be examined."""
    return len(value) > MOST or _named(name, value, variable=True) or bool(_spans(value))


# --- command lines --------------------------------------------------------------------------------
Span = tuple[int, int]


def without_secrets(text: str) -> str:
    """Return a text or script with HIDDEN in place of secrets."""
    if len(text) > MOST:
        return HIDDEN
    return _cut(text, _spans(text))


def command_without_secrets(command: Sequence[str]) -> list[str]:
    """Return the words of a command with HIDDEN in place of secrets.

    A secret may be inside a word, or be the word after its flag.
    """
    if sum(map(len, command)) > MOST:
        return [HIDDEN]
    hidden = [_spans(word) for word in command]
    for index, span in _by_place([Word(word, 0) for word in command]):
        hidden[index].append(span)
    return [_cut(word, spans) for word, spans in zip(command, hidden, strict=True)]


def _cut(text: str, spans: list[Span]) -> str:
    """Replace each span by HIDDEN, overlapping spans once."""
    if not spans:
        return text
    parts, at = [], -1
    for begin, end in sorted(spans):
        if begin > at:
            parts += [text[max(at, 0) : begin], HIDDEN]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def _spans(text: str, depth: int = 0) -> list[Span]:
    """Return where a text contains secrets."""
    found = list(_by_pattern(text)) if not depth else []
    if any(each in text for each in " \t\n"):  # single words are judged with their neighbours
        words = list(words_of(text))
        for index, (begin, end) in _by_place(words):
            found.append((words[index].begin + begin, words[index].begin + end))
        for word in words:
            if word.within and depth < _DEEPEST:
                found += [
                    (word.begin + b, word.begin + e) for b, e in _spans(word.within, depth + 1)
                ]
    return found


def _by_pattern(text: str) -> Iterator[Span]:
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            if match["hide"] and not _REFERENCE.fullmatch(match["hide"]):
                yield match.span("hide")
    at = 0
    while head := _HEAD.search(text, at):
        name, at = head["name"], head.end()
        is_flag = name.startswith("-")
        if head["blank"] and not is_flag:
            continue
        name = name[-_LONGEST:].lstrip("-")
        variable = name.isupper() and not is_flag
        # Most names mean no secret, whatever their value; test the name before the value.
        if _named(name, "x", variable=variable) and (said := _VALUE.match(text, at)):
            value = said[0].strip("\"'\\")
            plain = _REFERENCE.fullmatch(value) or _CALL.match(said[0])
            if not plain and _named(name, value.rstrip(")]},"), variable=variable):
                at = said.end()
                yield said.span()


def _by_place(words: Sequence[Word]) -> Iterator[tuple[int, Span]]:
    """Yield secrets that are recognised by their place: index of the word, and span in it."""
    begin = 0
    said: list[int] = []  # words printed by the command that is piped into the next one
    for end in range(len(words) + 1):
        if end < len(words) and not words[end].ends:
            continue
        command = range(begin, end)
        for index, at in _in_command(words, command):
            if at < len(words[index].text):
                yield index, (at, len(words[index].text))
        if any(_READS_ONE.fullmatch(_program(words[i].text)) for i in command):
            here = next((i + 1 for i in command if words[i].text == "<<<"), end)
            for i in (*said, *command[here - begin :]):
                if not _REFERENCE.fullmatch(words[i].text):
                    yield i, (0, len(words[i].text))
        piped = end < len(words) and words[end].text == "|"
        says = piped and end > begin and words[begin].text in _SAYS
        said = [i for i in command[1:] if words[i].text[:1] != "-"] if says else []
        begin = end + 1


def _program(word: str) -> str:
    return word[-64:].rsplit("/", 1)[-1]


def _in_command(words: Sequence[Word], command: range) -> Iterator[tuple[int, int]]:
    """Yield secrets in one command: index of the word, and where the secret starts."""
    program, login, sets, first = "", False, False, True
    takes: Callable[[str], int | None] | None = None  # where the next word is secret
    for i in command:
        word = words[i].text
        if takes is not None:
            at, takes = takes(word), None
            if at is not None:
                if not _REFERENCE.fullmatch(word, at):
                    yield i, at
                continue
        script = i > 0 and _RUNS_SCRIPT.fullmatch(words[i - 1].text)
        if (given := None if script else _GIVEN.match(word)) is not None:
            name, at = given["name"], given.end()
            variable = not given["dashes"] and (first or name.isupper())
            value = word[at : at + 64]
            if _named(name, value, variable=variable) and not _REFERENCE.fullmatch(word, at):
                yield i, at
                continue
        if word.startswith("-"):
            yield from ((i, at) for at in _in_flag(program, word))
            takes = _after(program, word, login=login)
            continue
        first = first and (word in _BEFORE_VARIABLES or given is not None)
        if login and program in _SIGN_IN and "://" not in word:
            yield i, 0
        if (known := _program(word)) in _KNOWN:
            program, login = known, False
        login = login or word == "login"
        if program == _BEHIND_ADDRESS:
            yield i, 0
        elif program in _MINIO and sets and "://" in word:
            program = _BEHIND_ADDRESS
        elif sets and given is None and _named(word, "x", variable=True):
            takes = _all
        sets = sets or word in _SETS


def _after(program: str, word: str, *, login: bool) -> Callable[[str], int | None] | None:
    """Return a function that says where the word after a flag is secret; None = unknown flag.

    The function returns None if the word is not the flag's value.
    """
    if word in _NEXT.get(program, ()) or (login and program in _LOGIN_P and word == "-p"):
        return _all
    bundle = _BUNDLE.fullmatch(word) if program == "curl" else None
    if word in _PAIR.get(program, ()) or (bundle and not bundle["rest"]):
        return _after_colon
    if login and word in _LOGIN_FLAGS:
        return _nothing
    bare = word.lstrip("-")
    return partial(_of_flag, bare) if len(bare) > 1 and "=" not in bare else None


def _all(_word: str) -> int:
    return 0


def _nothing(word: str) -> int:
    return len(word)


def _after_colon(word: str) -> int:
    found = _SEPARATES.search(word)
    return found.end() if found else len(word)


def _of_flag(name: str, word: str) -> int | None:
    if word.startswith("--") or re.fullmatch("-[A-Za-z]", word):
        return None
    return 0 if _named(name, word[:64], variable=False) else None


def _in_flag(program: str, word: str) -> Iterator[int]:
    """Yield where a flag of the program has its secret in the same word."""
    letter = _ATTACHED.get(program)
    if letter and word.startswith(f"-{letter}") and len(word) > 2:
        yield 2
    if program == "curl" and (found := _BUNDLE.fullmatch(word)) and found["rest"]:
        yield found.start("rest") + _after_colon(found["rest"])
    flag, equals, value = word.partition("=")
    if equals and flag in _PAIR.get(program, ()):
        yield len(flag) + 1 + _after_colon(value)


# --- pod sets -------------------------------------------------------------------------------------
def pod_set_without_secrets(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod set, as its document or REST shows it, without secrets.

    Covers variables, annotations, commands and addresses; any fields may be missing.
    """
    shown = dict(told)
    for name in ("env", "annotations"):
        if given := told.get(name):
            shown[name] = {n: HIDDEN if looks_secret(n, v) else v for n, v in given.items()}
    for name in ("init_containers", "sidecars"):
        if given := told.get(name):
            shown[name] = [_container(each) for each in given]
    if given := told.get("probes"):
        shown["probes"] = {name: _container(each) for name, each in given.items()}
    return _container(shown)


def _container(told: Mapping[str, Any]) -> dict[str, Any]:
    """Hide secrets in anything with a command: a pod, an extra container, a probe."""
    shown = dict(told)
    if given := told.get("command"):
        shown["command"] = command_without_secrets(given)
    for name in ("image", "http_path"):
        if given := told.get(name):
            shown[name] = without_secrets(given)
    return shown
