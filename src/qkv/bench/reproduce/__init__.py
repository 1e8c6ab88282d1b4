"""Reproduce the results table: train each row end to end, measure it, keep it as JSON and draw the page."""

from qkv.bench.reproduce.rows import ROWS, Metric, ResultRow, RowPart, get_row

__all__ = ["ROWS", "Metric", "ResultRow", "RowPart", "get_row"]
