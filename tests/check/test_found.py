"""docs/found.md shows what its scripts print."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # minutes in all

PAGE = Path(__file__).parents[2] / "docs" / "found.md"
SCRIPTS = sorted((PAGE.parent / "found").glob("*.py"))


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_found_script_prints_what_the_page_shows(script):
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.22.2":
        pytest.skip("the page is about transformers 5.22.2")
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in PAGE.read_text(encoding="utf-8")
