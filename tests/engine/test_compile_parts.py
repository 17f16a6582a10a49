"""C files that compile on their own, and reuse of what they were compiled to."""

from pathlib import Path

import pytest

from scheduling import compile_parts

TYPES = """#ifndef MYPYC_NATIVE_core_H
#define MYPYC_NATIVE_core_H
#include <Python.h>
#include <CPy.h>
typedef struct {
    PyObject_HEAD
    CPyTagged _gpus;
} jobObject;

typedef struct {
    PyObject_HEAD
    jobObject *_first;
} queueObject;

#endif
"""
DECLARED = """#ifndef MYPYC_LIBRT_INTERNAL_core_H
#define MYPYC_LIBRT_INTERNAL_core_H
#include <Python.h>
#include <CPy.h>
#include "__native_core.h"

extern PyObject *CPyStatics[9];
extern const char * const CPyLit_Str[];
extern char CPyDef_place(PyObject *cpy_r_queue, CPyTagged cpy_r_nodes);
extern queueObject *CPyDef_queue(void);
#endif
"""
BOTH = '#include "__native_core.h"\n#include "__native_internal_core.h"\n'
MAIN = """int CPyGlobalsInit(void)
{
    if (CPyStatics_Initialize(CPyStatics, CPyLit_Str) < 0) {
        return -1;
    }
    return 0;
}
"""
PLACE = """char CPyDef_place(PyObject *cpy_r_queue, CPyTagged cpy_r_nodes) {
    return CPyStatics[7] == CPyStatics[3] || CPyStatics[7] == cpy_r_queue;
}
"""
WALK = "int walk(void) { return CPyDef_queue()->_first != NULL; }\n"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes C of two modules as mypyc does, with `old` replaced by `new`,
    and returns the parts into which it is cut."""

    def write(old: str = "", new: str = "") -> dict[str, str]:
        files = {
            "__native_core.h": TYPES,
            "__native_internal_core.h": DECLARED,
            "__native_core.c": BOTH + MAIN,
            "__native_place.c": BOTH + PLACE,
            "__native_walk.c": BOTH + WALK,
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text.replace(old, new) if old else text)
        compile_parts.cut(tmp_path, "core")
        return {path.stem: path.read_text() for path in tmp_path.glob("*.c")}

    return write


def changed(written, old: str, new: str) -> set[str]:
    before = written()
    after = written(old, new)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new", "others"),
    [
        ("cpy_r_nodes", "cpy_r_hosts", {"__native_place"}),
        ("CPyTagged _gpus", "CPyTagged _cpus", {"__native_walk"}),
        ("queueObject *CPyDef_queue(void)", "queueObject *CPyDef_queue(int)", {"__native_walk"}),
        (
            "extern char CPyDef_place",
            "extern char CPyDef_new(void);\nextern char CPyDef_place",
            set(),
        ),
        ("CPyStatics[7]", "CPyStatics[8]", {"__native_core"}),
        ("CPyStatics[9]", "CPyStatics[10]", {"__native_core"}),
    ],
    ids=["parameter", "field", "result", "new function", "literal moved", "new literal"],
)
def test_a_file_changes_with_what_it_uses_and_with_nothing_else(written, old, new, others) -> None:
    assert changed(written, old, new) == others


def test_literals_are_numbered_in_each_file_and_filled_from_the_table_of_all(written) -> None:
    made = written()
    assert (
        "literals_place[0] == literals_place[1] || literals_place[0] ==" in made["__native_place"]
    )
    assert "CPyStatics" not in made["__native_place"]
    assert "of_all[] = {7, 3}" in made["__native_core"]
    filled = made["__native_core"].index("literals_place[own] =")
    assert (
        made["__native_core"].index("return -1;")
        < filled
        < made["__native_core"].index("return 0;")
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (BOTH, "", "does not include the headers"),
        ("CPyStatics_Initialize", "Make", "literals in one place"),
        ("} jobObject;", "", "ends within a declaration"),
    ],
    ids=["no header", "literals made elsewhere", "torn header"],
)
def test_files_of_another_mypyc_stay_as_they_are(written, tmp_path, old, new, said) -> None:
    with pytest.raises(ValueError, match=said):
        written(old, new)
    assert (tmp_path / "__native_walk.c").read_text().endswith(WALK)
    assert "typedef" not in (tmp_path / "__native_walk.c").read_text()


def store(folder: Path, *makers: str) -> compile_parts.KeptParts:
    return compile_parts.KeptParts(folder / "parts", makers)


def test_machine_code_is_found_by_what_it_was_made_of(tmp_path) -> None:
    code, found = tmp_path / "code.o", tmp_path / "found.o"
    code.write_bytes(b"machine code")
    first = store(tmp_path, "cc", "-O3")
    first.keep(first.key(b"int x;"), code)
    again = store(tmp_path, "cc", "-O3")
    assert again.take(again.key(b"int x;"), found)
    assert found.read_bytes() == b"machine code"
    assert not again.take(again.key(b"int y;"), found)
    other = store(tmp_path, "cc", "-O1")
    assert not other.take(other.key(b"int x;"), found)
    other.forget_others()
    assert list((tmp_path / "parts").iterdir()) == []


@pytest.mark.parametrize("left", [0, 20, 30])
def test_what_is_not_whole_is_compiled_again(tmp_path, left) -> None:
    code = tmp_path / "code.o"
    code.write_bytes(b"machine code of a module")
    kept = store(tmp_path, "cc")
    key = kept.key(b"int x;")
    kept.keep(key, code)
    file = tmp_path / "parts" / key
    file.write_bytes(file.read_bytes()[:left])
    assert not kept.take(key, tmp_path / "found.o")
