"""Make notebooks and archives for tests."""

import io
import json
import zipfile

NOTEBOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"language_info": {"name": "python"}}}


def notebook(*cells, **more):
    """A notebook of code cells; a tuple ("markdown", text) is another kind of cell."""
    entries = []
    for cell in cells:
        kind, source = cell if isinstance(cell, tuple) else ("code", cell)
        entry = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
        entries.append(entry | ({"outputs": [], "execution_count": None} if kind == "code" else {}))
    return json.dumps({**NOTEBOOK, "cells": entries, **more})


def archive(entries, compression=zipfile.ZIP_DEFLATED):
    """The bytes of a zip archive of these entries, by name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return out.getvalue()
