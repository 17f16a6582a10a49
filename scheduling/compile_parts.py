"""Splits the C source of the decision core into independent parts and keeps their machine code.

mypyc gives all C files one header with everything that any of them declares, and numbers the
literals across all of them; so any change would recompile everything. Here each file gets only the
declarations that it needs, and its own numbers. It then stays the same until its module changes, or
something that the module uses of others, and its machine code is found by its source.
"""

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

NAME = re.compile(r"[A-Za-z_]\w*")
# A header line declares the name before its parameters or its length.
EXTERN = re.compile(r"extern [^(\[;]*?(\w+)\s*[(\[;]")
LITERAL = re.compile(r"\bCPyStatics\[(\d+)\]")
# Words that surround a declared name.
WORDS = frozenset({
    "typedef", "struct", "union", "enum", "static", "inline", "const", "void", "int",
    "ifndef", "define", "endif",
})  # fmt: skip
HEADERS = ("__native_{}.h", "__native_internal_{}.h")
LITERALS_MADE = re.compile(r"if \(CPyStatics_Initialize\(.*?\n    \}\n", re.DOTALL)


def cut(folder: Path, library: str) -> None:
    """Make each of mypyc's C files in a folder independent of the shared headers.

    Raises ValueError, and changes nothing, if they are not in the form that this mypyc writes.
    """
    headers = [folder / name.format(library) for name in HEADERS]
    main = folder / f"__native_{library}.c"
    if missing := [file.name for file in (*headers, main) if not file.exists()]:
        raise ValueError(f"there is no {missing[0]}")
    includes = "".join(f'#include "{header.name}"\n' for header in headers)
    texts = {file: file.read_text() for file in folder.glob("__native_*.c")}
    if without := [file.name for file, text in texts.items() if includes not in text]:
        raise ValueError(f"{without[0]} does not include the headers of all")
    declarations = Declarations("".join(_inside(header.read_text()) for header in headers))
    bodies = {file: text.replace(includes, "") for file, text in texts.items()}
    tables = ""
    for file in sorted(bodies.keys() - {main}):
        bodies[file], table = _with_own_literals(bodies[file], file.stem.removeprefix("__native_"))
        tables += table
    bodies[main], made = LITERALS_MADE.subn(lambda found: found[0] + tables, bodies[main])
    if made != 1:
        raise ValueError(f"{main.name} does not make literals in one place")
    for file, body in bodies.items():
        file.write_text(declarations.needed_by(body) + body)


def _with_own_literals(body: str, module: str) -> tuple[str, str]:
    """Return a file's text with its own table of literals, and C that fills the table.

    The C copies the literals from the table of all files.
    """
    numbers: dict[str, int] = {}
    body = LITERAL.sub(
        lambda found: f"literals_{module}[{numbers.setdefault(found[1], len(numbers))}]", body
    )
    if not numbers:
        return body, ""
    table = f"PyObject *literals_{module}[{len(numbers)}];"
    filled = (
        f"    {{ extern {table}\n"
        f"      static const int of_all[] = {{{', '.join(numbers)}}};\n"
        f"      for (int own = 0; own < {len(numbers)}; own++)\n"
        f"          literals_{module}[own] = CPyStatics[of_all[own]]; }}\n"
    )
    return f"{table}\n{body}", filled


def _inside(header: str) -> str:
    """Return a header without its include guard and without its include of the other header."""
    lines = header.splitlines(keepends=True)
    return "".join(line for line in lines[2:-1] if not line.startswith('#include "__native_'))


class Declarations:
    """The declarations of the headers, in order."""

    def __init__(self, headers: str) -> None:
        self._parts = list(_parts(headers))
        self._by_name: dict[str, list[int]] = {}
        self._always: set[int] = set()
        for at, part in enumerate(self._parts):
            names = _declared(part)
            if not names:
                self._always.add(at)
            for name in names:
                self._by_name.setdefault(name, []).append(at)

    def needed_by(self, text: str) -> str:
        """Return the declarations that a C text names, those that these name, and so on."""
        needed = set(self._always)
        todo = [text, *(self._parts[at] for at in needed)]
        while todo:
            for name in set(NAME.findall(todo.pop())):
                for at in self._by_name.get(name, ()):
                    if at not in needed:
                        needed.add(at)
                        todo.append(self._parts[at])
        return "".join(self._parts[at] for at in sorted(needed))


def _parts(headers: str) -> Iterator[str]:
    """Yield each declaration by itself."""
    part, depth = "", 0
    for line in headers.splitlines(keepends=True):
        if not (part or line.strip()):
            continue
        part += line
        if line.startswith("#if"):
            depth += 1
        elif line.startswith("#endif"):
            depth -= 1
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.rstrip().endswith((";", "}", "#endif", '"', ">")):
            yield part
            part = ""
    if part:
        raise ValueError(f"a header ends within a declaration: {part[:80]!r}")


def _declared(part: str) -> Iterable[str]:
    """Return the names that a declaration defines; none if every file needs it."""
    if part.startswith("#include"):
        return ()
    if found := EXTERN.match(part):
        return (found[1],)
    outside, depth = "", 0
    for piece in re.split(r"([{}()])", part):
        if piece in ("{", "("):
            depth += 1
        elif piece in ("}", ")"):
            depth -= 1
        elif depth == 0:
            outside += f" {piece}"
    return set(NAME.findall(outside)) - WORDS


class KeptParts:
    """Machine code, found by what it was made from. Its files are complete or absent."""

    def __init__(self, folder: Path, makers: Iterable[str]) -> None:
        """`makers`: what all code depends on besides its source, such as the compiler."""
        self._folder = folder
        self._makers = hashlib.sha256("\0".join(makers).encode()).digest()
        self._used: set[str] = set()

    def key(self, source: bytes) -> str:
        return hashlib.sha256(self._makers + source).hexdigest()

    def take(self, key: str, into: Path) -> bool:
        """Write kept code to a file; False if there is none or it is damaged."""
        self._used.add(key)
        try:
            code = gzip.decompress((self._folder / key).read_bytes())
        except (OSError, EOFError, zlib.error):
            return False
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_bytes(code)
        return bool(code)

    def keep(self, key: str, code: Path) -> None:
        """Keep the content of a file, which has to be on the same disk."""
        self._folder.mkdir(exist_ok=True)
        packed = code.with_name(f"{code.name}.gz")
        packed.write_bytes(gzip.compress(code.read_bytes(), 1))
        os.replace(packed, self._folder / key)

    def forget_others(self) -> None:
        """Remove code that nobody asked for."""
        for path in self._folder.iterdir():
            if path.name not in self._used:
                path.unlink()
