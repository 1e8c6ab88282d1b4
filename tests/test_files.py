"""Atomic writes of files."""

import os
import socket
import stat

import pytest

from qkv._files import check_writable, write_atomic
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


def special_files(folder):
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("kept")
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("none")
    (folder / "to_device").symlink_to("/dev/null")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    return {
        "pipe": "a pipe",
        "link": "a symbolic link",
        "dangling": "a symbolic link",
        "to_device": "a symbolic link",
        "folder": "a folder",
        "socket": "a socket",
    }


def test_write_atomic_writes_only_to_regular_files_and_new_names(tmp_path):
    for name, kind in special_files(tmp_path).items():
        before = os.lstat(tmp_path / name)
        for write in (check_writable, lambda path: write_atomic(path, "new")):
            with pytest.raises(ValueError, match=f"{name}: it is {kind}; "):
                write(tmp_path / name)
        after = os.lstat(tmp_path / name)
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="it is a device"):
        check_writable("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_write_atomic_writes_through_a_linked_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    write_atomic(tmp_path / "link" / "new", "one")
    assert (tmp_path / "real" / "new").read_text() == "one"


OUTPUT_OPTIONS = (
    ("grade", "rope", "{file}", "--csv"),
    ("check", "torch.nn.functional:scaled_dot_product_attention", "--html"),
    ("check", "torch.nn.functional:scaled_dot_product_attention", "--junit"),
    ("byhand", "--example", "three-tokens", "--html"),
    ("claims", "run", "--all", "--report"),
)


@pytest.mark.parametrize("command", OUTPUT_OPTIONS, ids=" ".join)
def test_output_options_refuse_a_pipe_before_the_work(command, tmp_path, capsys):
    from qkv.cli.main import run

    special_files(tmp_path)
    (tmp_path / "file").write_text("")
    arguments = [part.format(file=tmp_path / "file") for part in command]
    assert run([*arguments, str(tmp_path / "pipe")]) == 2
    said = capsys.readouterr()
    assert "pipe: it is a pipe; give the name of a file" in said.err
    assert stat.S_ISFIFO(os.lstat(tmp_path / "pipe").st_mode)


def test_html_page_escapes_text():
    shown = page("<script>", table(["<b>"], [["<i>"], [b"<em>kept</em>"]]))
    assert "<script>" not in shown and "<b>" not in shown and "<i>" not in shown
    assert "<em>kept</em>" in shown
