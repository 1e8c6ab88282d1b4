"""The results table, rerun: rows as data, each trained end to end, measured, kept as JSON and drawn as a page."""

from qkv.bench.reproduce.rows import ROWS, Figure, Part, Row, row

__all__ = ["ROWS", "Figure", "Part", "Row", "row"]
