"""Workflows, hooks and templates: valid, and they run the commands that contributors run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import qkv

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ISSUE_FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_valid_and_runs_targets_of_the_makefile(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["name"] and workflow[True]  # YAML 1.1 reads the key `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["steps"]
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w.-]+@(v\d+|release/v\d+)", step["uses"])
            for target in re.findall(r"^make ([a-z-]+)", step.get("run", "")):
                assert target in TARGETS


SCHEMAS = {  # the published JSON schema of each file
    "github-workflows": WORKFLOWS,
    "github-issue-forms": [path for path in ISSUE_FORMS if path.stem != "config"],
    "github-issue-config": [path for path in ISSUE_FORMS if path.stem == "config"],
    "github-actions": [ROOT / "action.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_project_files_fit_their_published_schema(schema):
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    paths = [str(path) for path in SCHEMAS[schema]]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert paths and done.returncode == 0, done.stdout + done.stderr


def test_one_version_number_is_that_of_the_citation_and_the_newest_release_of_the_changelog():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == qkv.__version__
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0] == qkv.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"] and "version" not in project


def test_extras_that_messages_and_docs_name_exist():
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    install = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", install, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == extras
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md")]:
        for names in re.findall(r"\bqkv\[([\w,]+)\]", path.read_text(encoding="utf-8")):
            assert set(names.split(",")) <= extras, path


def test_continuous_integration_runs_every_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = {name.split()[-1] for name in project["classifiers"] if ":: Python :: 3." in name}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    tested = set(jobs["python"]["strategy"]["matrix"]["version"])
    tested |= {
        step["with"]["python-version"] for step in jobs["test"]["steps"] if "setup-python" in step.get("uses", "")
    }
    assert tested == supported


def test_the_test_workflow_runs_the_same_script_as_continuous_integration():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.search(r'- run: sudo env "PATH=\$PATH" \.ci/run\b', workflow)  # sudo alone drops setup-python's Python
    assert "make test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_pre_commit_hooks_use_the_tools_of_the_environment():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repository,) = config["repos"]
    assert repository["repo"] == "local"
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in repository["hooks"])


def test_issue_forms_ask_for_what_is_needed_to_repeat_a_bug():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem == "config":
            continue
        assert form["name"] and form["description"]
        assert all(part["attributes"]["label"] and part["type"] == "textarea" for part in form["body"])
