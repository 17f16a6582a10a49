"""Text files as people have them: compressed, with a byte order mark, in an old encoding,
damaged."""

import gzip
import random
import re

import pytest

from scheduling import text_files
from scheduling.text_files import InputError, NamedTwice, lines_of, text_of, yaml_of


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("a,b\n1,ü\n", encoding="utf-8-sig")
    assert list(lines_of(path)) == ["a,b\n", "1,ü\n"]


def test_only_comments_may_be_in_another_encoding(tmp_path):
    path = tmp_path / "log.swf"
    path.write_bytes("; Universität\n1 2\n".encode("latin-1"))
    assert list(lines_of(path)) == ["; Universit\ufffdt\n", "1 2\n"]
    path.write_bytes("; Log\n1 Universität\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"log.swf: line 2: cannot be read as text \(it is not"):
        list(lines_of(path))


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b[:40] + bytes(40) + b[80:]])
def test_a_damaged_archive_is_named(tmp_path, damage):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(damage(gzip.compress(b"".join(b"%d,%d\n" % (i, i * i) for i in range(999)))))
    with pytest.raises(InputError, match=r"trace\.csv\.gz: cannot be read as text"):
        list(lines_of(path))


def told(text_bytes, most_unpacked):
    """Return the lines, and the fault that ends them, worked out line by line."""
    lines = []
    text = text_bytes.decode("utf-8-sig", errors="surrogateescape")
    for number, line in enumerate(re.findall("[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text), start=1):
        most_unpacked -= len(line)
        if len(line) > text_files.MOST_OF_A_LINE:
            return lines, f"line {number} has more than"
        if most_unpacked < 0:
            return lines, f"line {number}: it unpacks"
        raw = line.encode(errors="surrogateescape")
        try:
            raw.decode()
        except UnicodeDecodeError:
            if not line.startswith(";"):
                return lines, f"line {number}: cannot be read as text"
        lines.append(raw.decode(errors="replace"))
    return lines, None


@pytest.mark.parametrize("piece", [1, 5, 64])
def test_files_are_read_in_pieces_as_line_by_line(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(text_files, "_PIECE", piece)
    monkeypatch.setattr(text_files, "MOST_OF_A_LINE", 12)
    monkeypatch.setattr(text_files, "MOST_UNPACKED", 60)
    monkeypatch.setattr(text_files, "MOST_A_BYTE", 0)
    path, draw, ends = tmp_path / "log.txt", random.Random(piece), set()
    parts = [
        b"a",
        b"bc",
        "ü".encode(),
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b";",
        b"\x0c",
        "\u2028".encode(),
    ]
    for _ in range(400):
        rare = draw.choice([[], [b"\xfc"], [b"a" * 9], [b"\n"] * 9])
        body = b"".join(draw.choices(parts + rare, k=draw.randrange(60)))
        path.write_bytes(draw.choice([b"", b"\xef\xbb\xbf"]) + body)
        lines, fault = told(path.read_bytes(), 60)
        ends.add(fault and fault.partition(": ")[2][:6])
        read = []
        if fault is None:
            read.extend(lines_of(path))
            assert text_of(path) == "".join(lines)
        else:
            with pytest.raises(InputError, match=fault):
                read.extend(lines_of(path))
            with pytest.raises(InputError, match=fault):
                text_of(path)
        assert read == lines
    assert ends == {None, "", "it unp", "cannot"}


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a"),
        ("x:\n  - {a: 1}\n  - {a: 1, a: 1}\n", 3, "a"),
        ("1: x\n2: x\n1: y\n", 3, "1"),
        ('{"a": {"b": 1, "b": 2}}', 1, "b"),
    ],
)
def test_a_name_that_stands_twice_in_yaml_is_refused_with_its_line(text, line, name):
    with pytest.raises(NamedTwice, match=f"line {line}: the name '{name}' appears twice") as error:
        yaml_of(text)
    assert (error.value.line, error.value.name) == (line, name)


@pytest.mark.parametrize("scalar", ["2026-13-01", "2026-02-30T25:00:00Z", "0x_", "9" * 5000])
def test_a_scalar_that_is_no_value_of_its_kind_is_refused(scalar):
    with pytest.raises(InputError, match="a value cannot be read"):
        yaml_of(f"a: {scalar}\n")


def test_one_name_in_two_mappings_and_aliases_of_one_stand_once():
    read = yaml_of("a: &x {b: 1}\nc: *x\nd: {b: 2}\n")
    assert read == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 2}}
