"""Hooks of the documentation site (mkdocs.yml): pages made from the README, other root files and the source."""

import re
from pathlib import Path

import make_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
# search ranks guides before lists that name every term
SEARCH_BOOST = {"attention.md": 4, "training.md": 4, "interpretability.md": 2, "grading.md": 2}
SEARCH_BOOST |= dict.fromkeys(("checks.md", "mutants.md", "changelog.md", "lab-log.md", "decisions.md"), 0.2)
ONLINE_SHIM = '<script src="https://unpkg.com/iframe-worker/shim"></script>'
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of root files and of the API reference."""
    for source, target in ROOT_PAGES.items():
        if (ROOT / source).is_file():
            text = LINK.sub(_from_root, (ROOT / source).read_text(encoding="utf-8"))
            files.append(File.generated(config, target, content=text))
    for name, text in make_reference.pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write a link to a file of the checkout that is not part of the site as text with its path."""
    if page.file.src_uri in SEARCH_BOOST:
        page.meta["search"] = {"boost": SEARCH_BOOST[page.file.src_uri]}
    folder = Path(page.file.src_uri).parent

    def check(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        path = _resolve(f"docs/{folder.as_posix()}/{match[2]}")
        if path in ROOT_PAGES:
            return f"[{match[1]}]({'../' * len(folder.parts)}{ROOT_PAGES[path]}{match[3] or ''})"
        inside = files.get_file_from_path(path.removeprefix("docs/"))
        return match[0] if inside or not (ROOT / path).exists() else f"{match[1]} (`{path}`)"

    return LINK.sub(check, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Search from file:// with our own script, so that the site asks no other host."""
    return _replace_shim(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html."""
    return _replace_shim(output_content)


def _replace_shim(output: str) -> str:
    script = (ROOT / "docs" / "file_search.js").read_text(encoding="utf-8")
    return output.replace(ONLINE_SHIM, f"<script>{script}</script>")


def _from_root(match: re.Match[str]) -> str:
    """A link of a root file, as seen from docs/."""
    target = ROOT_PAGES.get(match[2]) or match[2].removeprefix("docs/")
    return f"[{match[1]}]({target}{match[3] or ''})"


def _resolve(path: str) -> str:
    """
    >>> _resolve("docs/./tutorials/../check.md")
    'docs/check.md'
    """
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
