"""Atomic writes of files."""

import os
import socket
import stat

import pytest

from qkv._files import check_writable, read_json, read_limited, write_atomic
from qkv._html import page, table
from qkv._panics import panics_as_errors


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


def test_read_limited_refuses_what_is_too_large_or_no_regular_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_limited(path, 8) == b'{"a": 1}' and read_json(path, "a") == {"a": 1}
    with pytest.raises(ValueError, match=r"a\.json has 8 bytes; such a file has at most 7"):
        read_limited(path, 7)
    (tmp_path / "link").symlink_to(path)
    assert read_limited(tmp_path / "link") == b'{"a": 1}'
    with pytest.raises(OSError, match="is a symbolic link"):
        read_limited(tmp_path / "link", follow_link=False)
    os.truncate(path, 2**40)
    with pytest.raises(ValueError, match="has at most"):
        read_json(path, "a")


def test_a_panic_becomes_one_sentence_and_other_messages_are_kept(capfd):
    panic = type("PanicException", (BaseException,), {})

    def fail(text: bytes, error: BaseException) -> None:
        with panics_as_errors("the list"), panics_as_errors("the file"):
            os.write(2, text)
            raise error

    with pytest.raises(ValueError, match="the file cannot be used: index out of bounds"):
        fail(b"thread panicked", panic("index out\nof bounds"))
    assert capfd.readouterr().err == ""
    with pytest.raises(KeyError):
        fail(b"kept", KeyError())
    assert capfd.readouterr().err == "kept"
