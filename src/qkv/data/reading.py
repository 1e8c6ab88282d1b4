"""Text and tables from files: UTF-8 or a sentence that says where it is not."""

from pathlib import Path


def read_text(path: str | Path) -> str:
    """A whole UTF-8 file; an empty one, or bytes that are not UTF-8, are a ValueError that says where."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected a text file")
    content = path.read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty; expected text in UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte {error.start} (0x{content[error.start]:02x}) is not UTF-8; save the file as "
            f"UTF-8, or convert it: iconv -f latin1 -t utf-8"
        ) from None


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 file, without their ends. It ends at \\n only, so that its number is an editor's."""
    text = read_text(path)
    return (text[:-1] if text.endswith("\n") else text).split("\n")


def read_table(path: str | Path, columns: int) -> list[tuple[str, ...]]:
    """The rows of a file of tab-separated columns; a row with another number of them is a ValueError that names it."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        cells = tuple(cell.strip() for cell in line.split("\t"))
        if len(cells) != columns:
            raise ValueError(
                f"{path}, line {number}: expected {columns} columns separated by tabs; got {len(cells)}: {_short(line)}"
            )
        if not all(cells):
            raise ValueError(f"{path}, line {number}: column {cells.index('') + 1} of {columns} is empty")
        rows.append(cells)
    return rows


def _short(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "…")
