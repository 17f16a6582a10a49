"""Files as people have them: compressed, with a byte order mark, in an old encoding, damaged."""

import gzip

import pytest

from scheduling.text_files import InputError, lines_of


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
