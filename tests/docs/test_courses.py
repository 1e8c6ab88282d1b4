"""The pages of docs/courses answer every item of the sheets, each with a command that test_tutorials runs."""

import json
import re
from pathlib import Path

import make_diagrams
import make_notebooks
import numpy as np
import pytest
import torch
from page_blocks import BLOCK

from qkv.claims import CLAIMS
from qkv.cli.main import run

COURSES = Path(__file__).parents[2] / "docs" / "courses"
ITEMS = {
    "nyu-hw4": ("N1a N1b N1c N1d N1e N1f N1g N2a N2b N3a N3b N3c N3d N3e N4 N4a N4b N4c N4d N4e N5a N5b N5c N5d N6"),
    "attention-assignment": "A1 A2 A3 A4 A5",
    "cs224n-a5": "C0 C1a C1b C1c C1d C1e C2a C2b C2c C2d C2e C2f C2g C3a C3b C3c",
    "csci5922-ps4": "P1a P1b P1c P1d P2a P2b P2c P2d P3a,b P3c P3d P3x",
}


def sections(page: str) -> dict[str, str]:
    """The text under each heading, down to the next one, by the ids in the heading."""
    parts = re.split(r"^##+ (.*)$", (COURSES / f"{page}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        for item in re.findall(r"\b[NACP]\d[a-gx]?(?:,b)?\b", heading):
            found[item] = text
    return found


@pytest.mark.parametrize(("page", "item"), [(page, item) for page, items in ITEMS.items() for item in items.split()])
def test_every_item_of_a_course_has_a_section_with_a_command(page, item):
    text = sections(page)[item]
    assert len(text.split()) > 30
    assert BLOCK.search(text), f"{item} has no command"


def test_every_claim_that_a_course_page_runs_exists_and_every_linked_figure_too():
    for page in COURSES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"^\$ qkv claims run ([^\n]*)$", text, re.MULTILINE):
            names = [word for word in line.split() if "=" not in word and "." not in word and not word.startswith("--")]
            assert all(name in CLAIMS for name in names)
        assert all((COURSES / name).is_file() for name in re.findall(r"\]\((\w[\w-]*\.svg)\)", text))


def test_questions_lists_the_new_answers(capsys):
    assert run(["questions", "RNNs", "common"]) == 0
    assert "similar-to-rnn" in capsys.readouterr().out


def test_train_help_of_a_recipe_lists_its_presets(capsys):
    assert run(["train", "birthplaces", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "qkv train birthplaces --preset cs224n-a5 --show" in shown and "perceiver" in shown
    assert run(["train", "--help"]) == 0
    assert "qkv train RECIPE --help" in " ".join(capsys.readouterr().out.split())


def notebook_cells() -> list[str]:
    cells = json.loads((COURSES / "nyu-hw4.ipynb").read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def printed_by(cells: list[dict]) -> list[str]:
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]


@pytest.mark.parametrize("script", make_notebooks.SCRIPTS)
def test_the_notebook_of_a_course_is_made_from_its_script(script):
    notebook = json.loads((COURSES / make_notebooks.SCRIPTS[script]).read_text(encoding="utf-8"))
    made = json.loads(make_notebooks.notebook_of_script((COURSES / script).read_text(encoding="utf-8")))
    sources = [[cell["source"] for cell in found["cells"]] for found in (notebook, made)]
    assert sources[0] == sources[1], "python docs/make_notebooks.py"
    printed = "".join(printed_by(notebook["cells"]))
    assert "3,217,764 parameters" in printed and "convolution equals matrix times patches: True" in printed
    has_run = (COURSES / "nyu-hw4-run.json").exists()
    assert ("this notebook has run no epoch" in printed) != has_run
    assert ("best accuracy" in printed) == has_run


@pytest.fixture
def tiny_vit_run(tmp_path, monkeypatch, capsys):
    """Run the cells of the notebook on tiny data for some epochs, in the same files; returns what they print."""
    random = np.random.default_rng(0)
    labels = np.arange(48) % 4
    images = (60 * labels[:, None, None, None] + random.integers(0, 20, (48, 32, 32, 3))).astype(np.uint8)
    np.savez(tmp_path / "tiny.npz", train_x=images, train_y=labels, test_x=images[:16], test_y=labels[:16])
    sizes = {"DIM": 16, "DEPTH": 1, "MLP_DIM": 16, "BATCH_SIZE": 16, "CIFAR100": tmp_path / "tiny.npz"}
    for name, value in sizes.items():
        monkeypatch.setenv(name, str(value))

    def run_cells(epochs: int, record: str) -> str:
        import matplotlib as mpl

        monkeypatch.setenv("EPOCHS", str(epochs))
        monkeypatch.setenv("RUN", str(tmp_path / record))
        before = mpl.get_backend()
        mpl.use("agg")
        here: dict = {"__name__": "__main__"}
        try:
            with torch.random.fork_rng(devices=[]):
                for cell in notebook_cells():
                    exec(compile(cell, "<cell>", "exec"), here)
        finally:
            if "pyplot" in here:
                here["pyplot"].close("all")
            mpl.use(before)
        return capsys.readouterr().out

    return run_cells


def test_the_vit_notebook_trains_saves_and_resumes_with_the_same_numbers(tiny_vit_run, tmp_path):
    whole = tiny_vit_run(3, "whole.json")
    assert len(re.findall(r"^epoch +\d+  loss \d+\.\d+  accuracy \d+\.\d+ %$", whole, re.MULTILINE)) == 3
    assert re.search(r"best accuracy \d+\.\d+ % after epoch [123] \(picked on the test set\)", whole)
    assert re.search(r"^ +1 +16\.06 +\d+\.\d+$", whole, re.MULTILINE)  # beside the published one
    tiny_vit_run(1, "parts.json")
    assert tiny_vit_run(3, "parts.json") == whole
    assert (tmp_path / "parts.json").read_text() == (tmp_path / "whole.json").read_text()
    (tmp_path / "parts.pt").unlink()  # a finished run is shown from its record
    (tmp_path / "tiny.npz").unlink()
    assert tiny_vit_run(3, "parts.json") == whole


def test_with_outputs_shows_a_saved_run_in_the_notebook(tiny_vit_run, tmp_path):
    printed = tiny_vit_run(2, "run.json")
    made = make_notebooks.notebook_of_script((COURSES / "vit_cifar100.py").read_text(encoding="utf-8"))
    cells = json.loads(make_notebooks.with_outputs(made, tmp_path / "run.json"))["cells"]
    assert "".join(printed_by(cells)) == printed
    assert cells[-1]["outputs"][-1]["data"]["image/png"].startswith("iVBOR")


def test_with_outputs_shows_the_published_figures_and_no_others_if_nothing_was_run(tiny_vit_run, tmp_path, monkeypatch):
    monkeypatch.setenv("EPOCHS", "")  # with_outputs sets both
    monkeypatch.setenv("RUN", "")
    made = make_notebooks.notebook_of_script((COURSES / "vit_cifar100.py").read_text(encoding="utf-8"))
    cells = json.loads(make_notebooks.with_outputs(made, tmp_path / "none.json"))["cells"]
    rows = [line.split() for line in printed_by(cells)[-1].splitlines()]
    published = {"1": "16.06", "10": "39.91", "20": "50.86", "50": "62.34", "90": "67.96"}
    assert rows[-5:] == [[epoch, accuracy, "–"] for epoch, accuracy in published.items()]
    assert not (tmp_path / "none.json").exists()


def test_the_vit_notebook_refuses_a_run_with_other_settings(tiny_vit_run, monkeypatch):
    tiny_vit_run(1, "run.json")
    monkeypatch.setenv("DIM", "8")
    with pytest.raises(ValueError, match=r"is of a run with other settings"):
        tiny_vit_run(2, "run.json")


def test_the_vit_of_the_notebook_is_that_of_the_homework():
    from qkv.models import PRESETS, ViT

    here: dict = {"__name__": "cells"}
    for cell in notebook_cells():
        exec(compile(cell, "<cell>", "exec"), here)
    settings = here["Settings"]()
    ours, theirs = here["build_model"](settings), ViT(PRESETS["nyu-hw4-vit"])
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert count == theirs.num_parameters == 3_217_764
    images, targets = torch.rand(6, 3, 32, 32), torch.eye(6)
    for mix in (here["mixup"], here["cutmix"]):
        mixed, shares = mix(images, targets, 1.0)
        assert mixed.shape == images.shape and torch.allclose(shares.sum(1), torch.ones(6))
    cropped = here["random_crop"](images, 4)
    assert cropped.shape == images.shape and not torch.equal(cropped, images)


@pytest.mark.long
def test_the_vit_notebook_gets_full_marks(capsys):
    assert run(["grade", "nyu-vit", str(COURSES / "nyu-hw4.ipynb")]) == 0
    assert "40 of 40" in capsys.readouterr().out


def test_the_accuracies_and_the_command_of_n6_are_those_of_its_record():
    (part,) = json.loads((COURSES.parent / "results" / "cifar100-nyu-hw4.json").read_text(encoding="utf-8"))["parts"]
    text = sections("nyu-hw4")["N6"]
    ours = dict(re.findall(r"^\| (\d+) \| [\d.–]+ \| \**(\d+\.\d\d)\**", text, re.MULTILINE))
    measured = {str(step // 196): f"{100 * accuracy:.2f}" for step, _, accuracy in part["curve"]}
    assert ours == measured and len(ours) == 10
    (line,) = re.findall(r"^qkv train .* --epochs 10 .*$", text, re.MULTILINE)
    settings = {text.split("=")[0] for text in part["differs"] if "=" in text} - {"train.disable_malloc_trim"}
    assert settings == {name.split("=")[0] for name in re.findall(r"--set (\S+)", line)}
    script = (COURSES / "vit_cifar100.py").read_text(encoding="utf-8")
    assert f"{measured['1']} %" in script and f"{measured['10']} %" in script.replace("\n# ", " ")


@pytest.mark.parametrize("name", make_diagrams.DIAGRAMS)
def test_a_diagram_is_drawn_by_its_function_on_its_own_background(name):
    drawn = make_diagrams.DIAGRAMS[name]().svg()
    assert (COURSES / f"{name}.svg").read_text(encoding="utf-8") == drawn, "python docs/make_diagrams.py"
    assert "currentColor" not in drawn and f'rx="8" fill="{make_diagrams.PAPER}"' in drawn
    assert not re.search(r">[^<]*  [^<]*<", drawn)  # two spaces collapse into one


@pytest.mark.parametrize(("page", "item"), [(page, item) for page, items in ITEMS.items() for item in items.split()])
def test_every_item_of_a_course_names_a_usual_mistake(page, item):
    assert "**Usual mistake" in sections(page)[item]
