"""Files that people keep."""

import pytest

from qkv._files import write_atomic
from qkv._html import page, table


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "page.html"
    write_atomic(path, "one")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "two\ud800")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        write_atomic(tmp_path / "none" / "page.html", "one")
    with pytest.raises(ValueError, match="is a folder"):
        write_atomic(tmp_path, "one")


def test_text_on_a_page_stays_text():
    shown = page("<script>", table(["<b>"], [["<i>"], [b"<em>kept</em>"]]))
    assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown
    assert "<em>kept</em>" in shown
