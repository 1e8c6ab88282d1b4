"""Write docs/checks.md, the page of finding ids, from the registry of checks."""

from pathlib import Path

from qkv.check.catalog import checks_page

if __name__ == "__main__":
    (Path(__file__).parent / "checks.md").write_text(checks_page(), encoding="utf-8")
