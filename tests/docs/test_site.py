"""The documentation site: builds without a warning, and its search index has the field's terms."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TERMS = {
    "KV cache": "attention.html",
    "ablation": "interpretability.html",
    "label smoothing": "training.html",
    "SpecAugment": "data.html",
    "grouped-query attention": "attention.html",
    "sliding window": "attention.html",
    "mixed precision": "training.html",
    "activation checkpointing": "training.html",
    "gradient clipping": "training.html",
    "fine-tuning": "training.html",
    "data augmentation": "data.html",
    "pseudo-labels": "training.html",
    "resume training": "training.html",
    "grade notebook": "grading.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs-material is not installed (pip install 'qkv[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "docs")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.fixture(scope="module")
def sections(site) -> list[dict[str, str]]:
    """Location, title and text of every section, as the page's search reads them."""
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    return json.loads(text[text.index("{") : text.rindex("}") + 1])["docs"]


@pytest.mark.parametrize("term", TERMS)
def test_search_index_finds_the_page_of_a_term(sections, term):
    words = term.lower().split()
    found = {
        section["location"].split("#")[0]
        for section in sections
        if all(word in re.sub("<.*?>", "", section["title"] + " " + section["text"]).lower() for word in words)
    }
    assert TERMS[term] in found


def test_site_has_every_tutorial_course_and_public_module_and_asks_no_other_host(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "tutorials/student.html", "courses/nyu-hw4.html", "reference/qkv.nn.html"} <= pages
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page), path
