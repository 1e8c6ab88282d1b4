"""Atomic writes of files."""

import pytest

from qkv._files import write_atomic
from qkv._html import page, table


def test_write_atomic_writes_the_whole_file_or_nothing(tmp_path):
    path = tmp_path / "page.html"
    write_atomic(path, "one")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "two\ud800")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_names_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        write_atomic(tmp_path / "none" / "page.html", "one")
    with pytest.raises(ValueError, match="is a folder"):
        write_atomic(tmp_path, "one")


def test_html_page_escapes_text():
    shown = page("<script>", table(["<b>"], [["<i>"], [b"<em>kept</em>"]]))
    assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown
    assert "<em>kept</em>" in shown
