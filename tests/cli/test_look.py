"""`qkv look`, as it is typed."""

import json
import re

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn.modules.module import register_module_forward_pre_hook

import qkv
from qkv.cli import console
from qkv.cli.main import run
from qkv.interp.viewer.terminal import head_map_lines

TEXT = "the cat sat on the mat and the dog"
WORDS = sorted({*TEXT.split(), "a", "bird", "<s>", "</s>"})


def tokenizer() -> bytes:
    made = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="a"))
    made.pre_tokenizer = Whitespace()
    return made.to_str().encode()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A text model, a translator, an image model and a model without attention, with random weights."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(5)
    models = {
        "gpt": qkv.models.GPT(qkv.models.GPTConfig(vocab_size=len(WORDS), max_length=24, dim=32, layers=2, heads=4)),
        "pair": qkv.models.Seq2Seq(
            qkv.models.Seq2SeqConfig(vocab_size=len(WORDS), dim=32, heads=4, encoder_layers=1, decoder_layers=2)
        ),
        "vit": qkv.models.ViT(qkv.models.ViTConfig(image_size=16, patch_size=4, dim=32, layers=2, heads=2)),
        "cnn": qkv.models.CNN(qkv.models.CNNConfig()),
    }
    for name, model in models.items():
        if name in ("gpt", "pair"):
            model.extra_files["tokenizer.json"] = tokenizer()
        model.save(folder / name)
    Image.new("RGB", (20, 20), (200, 30, 30)).save(folder / "red.png")
    return folder


def png_width(file) -> int:
    with Image.open(file) as image:
        return image.width


def run_look(capsys, *arguments) -> tuple[int, str, str]:
    code = run(["look", *(str(argument) for argument in arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_look_at_a_text_prints_head_types_and_a_map(folders, capsys):
    code, out, _ = run_look(capsys, folders / "gpt", TEXT)
    assert code == 0
    assert "GPT, 2 attention layers, 8 heads, 9 tokens" in out
    assert "next token" in out and "layer" in out and "0   ··::--==++**##@@ 1" in out
    assert out.count(" @@") >= 1  # the first token can attend to nothing but itself


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["gpt", TEXT], 2),
        (["gpt", "the cat"], 1),  # too short to be shuffled or repeated
        (["pair", TEXT, "--target", "the bird"], 2),
        (["vit", "red.png"], 2),
        (["gpt", TEXT, "--ablate", "1.2"], 3),
        (["gpt", TEXT, "--ablation-sweep"], 2 + 8),
        (["gpt", TEXT, "--logit-lens"], 2 + 1 + 3),
    ],
)
def test_look_runs_the_model_once_on_the_input_and_once_on_all_probes(folders, capsys, monkeypatch, arguments, runs):
    monkeypatch.chdir(folders)
    calls: list[object] = []
    handle = register_module_forward_pre_hook(
        lambda module, inputs: calls.append(module) if isinstance(module, qkv.models.Model) else None
    )
    try:
        code, _, _ = run_look(capsys, *arguments)
    finally:
        handle.remove()
    assert code == 0 and len(calls) == runs


def test_look_head_counts_from_the_end_if_negative(folders, capsys):
    last = run_look(capsys, folders / "gpt", TEXT, "--layer", 1, "--head", 3)
    assert run_look(capsys, folders / "gpt", TEXT, "--layer", -1, "--head", -1) == last and last[0] == 0


def test_look_says_that_a_masked_edge_changes_nothing(folders, capsys):
    code, _, err = run_look(capsys, folders / "gpt", TEXT, "--mask-edge", "0.0:1:3", "--mask-edge", "0.0:3:1")
    notes = [line for line in err.splitlines() if "changes nothing" in line]
    assert code == 0
    assert notes == ["--mask-edge 0.0:1:3 changes nothing: query 1 does not attend to key 3 anyway"]


def test_look_prints_heads_with_their_scores_in_80_columns(folders, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console.out.cache_clear()
    _, out, _ = run_look(capsys, folders / "gpt", TEXT)
    console.out.cache_clear()
    assert re.search(r"^\S+ +(attends|spreads)", out, re.MULTILINE)
    assert re.search(r"^ +heads? \d\.\d \(\d\.\d\d\)(, \d\.\d \(\d\.\d\d\))*", out, re.MULTILINE)
    assert max(len(line) for line in out.splitlines() if str(folders) not in line) <= 80


def test_look_leaves_the_cells_of_masked_keys_empty(folders, capsys):
    _, out, _ = run_look(capsys, folders / "gpt", TEXT, "--layer", 0, "--head", 0)
    assert re.search(r"^the @@ *$", out, re.MULTILINE)  # the first token sees itself only


def test_look_needs_no_quotes_around_words(folders, capsys):
    assert run_look(capsys, folders / "gpt", *TEXT.split())[1] == run_look(capsys, folders / "gpt", TEXT)[1]


def test_look_json_holds_the_weights_of_the_trace(folders, capsys):
    code, out, _ = run_look(capsys, folders / "gpt", TEXT, "--layer", 1, "--head", 2, "--json")
    found = json.loads(out)
    assert code == 0 and (found["shown"]["layer"], found["shown"]["head"]) == (1, 2)
    model = qkv.load(folders / "gpt")
    tokens = torch.tensor([[WORDS.index(word) for word in TEXT.split()]])
    assert found["tokens"] == TEXT.split()
    assert torch.allclose(torch.tensor(found["shown"]["weights"]), qkv.interp.trace(model, tokens).weights(1, 2))
    chances = model(tokens).detach()[0, -1].softmax(-1)
    assert found["prediction"][0]["token"] == int(chances.argmax())
    assert found["prediction"][0]["probability"] == pytest.approx(float(chances.max()), rel=1e-5)


def test_look_ablate_and_scale_print_their_effect(folders, capsys):
    code, out, _ = run_look(capsys, folders / "gpt", TEXT, "--ablate", "1.2", "--scale", "0=x2", "--json")
    found = json.loads(out)["effect"]
    model = qkv.load(folders / "gpt")
    tokens = torch.tensor([[WORDS.index(word) for word in TEXT.split()]])
    with qkv.interp.intervene(model, ablate_heads=[(1, 2)], scale={0: 2 * 8**-0.5}):
        changed = model(tokens)
    loss = torch.nn.functional.cross_entropy(changed.detach()[0, :-1], tokens[0, 1:])
    assert code == 0 and found["loss_after"] == pytest.approx(float(loss), rel=1e-4)
    assert "head 1.2 ablated" in run_look(capsys, folders / "gpt", TEXT, "--ablate", "1.2")[1]


def test_look_shows_and_exports_another_head_than_the_ablated_ones(folders, capsys, tmp_path):
    clearest = json.loads(run_look(capsys, folders / "gpt", TEXT, "--json")[1])["shown"]
    name = f"{clearest['layer']}.{clearest['head']}"
    file = tmp_path / "page.html"
    run_look(capsys, folders / "gpt", TEXT, "--ablate", name, "--html", file)
    shown = json.loads(run_look(capsys, folders / "gpt", TEXT, "--ablate", name, "--json")[1])["shown"]
    assert (shown["layer"], shown["head"]) != (clearest["layer"], clearest["head"])
    page = json.loads(file.read_text("utf-8").split('id="description">')[1].split("</script>")[0])
    panel = page["panels"][clearest["layer"]]
    assert panel["peaks"][clearest["head"]] == 0 and panel["types"][clearest["head"]] == []
    assert page["first"] != [clearest["layer"], clearest["head"]]
    facts = dict(page["facts"])
    assert facts["intervention"] == f"head {name} ablated"
    assert " → " in facts["its effect"] and "next token without the intervention" in facts
    layer = clearest["layer"]
    whole = ",".join(f"{layer}.{head}" for head in range(4))
    _, out, _ = run_look(capsys, folders / "gpt", TEXT, "--ablate", whole, "--layer", layer)
    assert f"heads {whole} ablated" in out and f"layer {layer}, head" in out


def test_look_counts_one_token_in_the_singular(folders, capsys):
    assert "8 heads, 1 token\n" in run_look(capsys, folders / "gpt", "the")[1]


def test_look_mask_edge_prints_its_effect(folders, capsys):
    for text, edge in {"1.2:4:1": (1, 2, 4, 1), "0:4:1": (0, None, 4, 1)}.items():
        code, out, _ = run_look(
            capsys, folders / "gpt", TEXT, "--mask-edge", text, "--layer", edge[0], "--head", 2, "--json"
        )
        found = json.loads(out)
        model = qkv.load(folders / "gpt")
        tokens = torch.tensor([[WORDS.index(word) for word in TEXT.split()]])
        effect = qkv.interp.measure_effect(model, tokens, mask_edges=[edge])
        assert (
            code == 0
            and found["effect"]["kl_at"][4] == pytest.approx(effect.kl_at[4], rel=1e-5)
            and effect.kl_at[4] > 0
        )
        assert found["shown"]["weights"][4][1] == 0
    assert "edge 0:4:1 masked" in run_look(capsys, folders / "gpt", TEXT, "--mask-edge", "0:4:1")[1]


def test_look_prints_ablation_sweep_logit_lens_rollout_and_comparison(folders, capsys, tmp_path):
    _, out, _ = run_look(
        capsys, folders / "gpt", TEXT, "--ablation-sweep", "--logit-lens", "--rollout", "--png", tmp_path / "sweep.png"
    )
    assert (
        "each head ablated" in out
        and "logit lens: the prediction of each layer" in out
        and "rollout through 2 layers" in out
    )
    assert png_width(tmp_path / "sweep.png") > 200
    _, out, _ = run_look(capsys, folders / "gpt", TEXT, "--compare", TEXT.replace("cat", "bird"))
    assert "mean distance" in out
    _, out, _ = run_look(capsys, folders / "gpt", TEXT, "--compare", folders / "gpt")
    assert "mean distance 0.000" in out


def test_look_writes_html_and_png_for_text_pairs_and_images(folders, capsys, tmp_path):
    given = {"gpt": [TEXT], "pair": [TEXT, "--target", "the bird"], "vit": [folders / "red.png"]}
    for name, words in given.items():
        files = tmp_path / f"{name}.html", tmp_path / f"{name}.png"
        code, out, err = run_look(capsys, folders / name, *words, "--html", files[0], "--png", files[1])
        assert code == 0 and out == "" and str(files[0]) in err.replace("\n", "")
        assert "<!doctype html>" in files[0].read_text("utf-8")
        assert png_width(files[1]) > 200
    assert '"name":"source"' in (tmp_path / "pair.html").read_text("utf-8")
    assert '"name":"rollout"' in (tmp_path / "vit.html").read_text("utf-8")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html"] * 3 + [".png"] * 3  # and nothing half-done


def test_look_shows_an_image_by_its_patches(folders, capsys):
    code, out, err = run_look(capsys, folders / "vit", folders / "red.png", "--query", "1,2")
    assert code == 0 and "4 × 4 patches" in out and "what “1,2” attends to" in out
    assert "resized to 16×16" in " ".join(err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt"], "no input was given"),
        (["gpt", "the " * 40], "give at most 24"),
        (["gpt", TEXT, "--layer", "7"], "there are 2 layers"),
        (["gpt", TEXT, "--head", "9"], "has 4 heads, 0 to 3; got --head 9"),
        (["gpt", TEXT, "--ablate", "two"], "such as 3.1"),
        (["gpt", TEXT, "--ablate", "0.9"], "has 4 heads"),
        (["gpt", TEXT, "--scale", "hot"], "--scale must be a number"),
        (["gpt", TEXT, "--mask-edge", "1.2:4"], "such as 3.1:5:2"),
        (["gpt", TEXT, "--mask-edge", "1.9:4:1"], "has 4 heads"),
        (["gpt", TEXT, "--query", "77"], "0 to 8"),
        (["gpt", TEXT, "--full"], "needs --html"),
        (["gpt", TEXT, "--target", "x"], "a target needs an encoder–decoder"),
        (["gpt", TEXT, "--compare", "the cat"], "same number of tokens"),
        (["gpt", TEXT, "--html", "nowhere/at/all.html"], "there is no folder"),
        (["vit", "no-such.png"], "there is no file"),
        (["cnn", "red.png"], "has no attention"),
        (["missing.bin", TEXT], "there is nothing at"),
        (["gpt", TEXT, "--head", "-5"], "has 4 heads, 0 to 3; got --head -5"),
        (["gpt", TEXT, "--png", "heads.jpg"], "--png writes a PNG image: name a file that ends in .png"),
        (["gpt", TEXT, "--mask-edge", "0:1:9"], "--mask-edge 0:1:9: there is no key 9; they are 0 to 8"),
        (["gpt", TEXT, "--mask-edge", "0:9:1"], "--mask-edge 0:9:1: there is no query 9; they are 0 to 8"),
        (["gpt", TEXT, "--compare", "vit"], "vit cannot be compared with gpt: this ViT reads an image file"),
        (["gpt", TEXT, "--compare", "bird"], "There is no checkpoint 'bird', so --compare read it as a text"),
    ],
)
def test_look_answers_wrong_use_with_one_sentence(folders, capsys, monkeypatch, unchecked, arguments, words):
    monkeypatch.chdir(folders)
    code, out, err = run_look(capsys, *arguments)
    assert code == 2 and out == ""
    assert words in " ".join(err.split()) and "Traceback" not in err


def test_look_refuses_a_damaged_folder(folders, capsys, tmp_path):
    qkv.load(folders / "gpt").save(tmp_path / "gpt")
    weights = tmp_path / "gpt" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, _, err = run_look(capsys, tmp_path / "gpt", TEXT)
    assert code == 2 and "model.safetensors" in err


@pytest.mark.parametrize("command", ["look", "use"])
def test_look_and_use_name_all_characters_that_the_model_does_not_know(command, capsys):
    assert run([command, "qkv:shakespeare", "Hello 2024"]) == 2
    message = capsys.readouterr().err
    assert "the characters '2', '0', '4' (the first at position 7) are not in the tokenizer's vocabulary" in message
    assert "bug" not in message and message.count("\n") == 1
    assert run([command, "qkv:shakespeare", "Caf\N{LATIN SMALL LETTER E WITH ACUTE}"]) == 2
    assert "the character 'é' (position 4) is not in" in capsys.readouterr().err


def test_look_numbers_columns_whose_names_are_alike_in_two_characters():
    with qkv.interp.record() as trace:
        qkv.attention(*torch.randn(3, 1, 1, 12, 4))
    times = [f"0.{4 * i:02d} s" for i in range(12)]
    lines = next(iter(head_map_lines(trace, 0, 0, times, times, width=80, color=False))).plain.splitlines()
    assert lines[0].split() == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "91011"]
    assert lines[1].startswith(" 0 0.00 s ") and lines[12].startswith("11 0.44 s ")
    words = ["the", "cat", "sat", "on", "the", "mat"] * 2
    lines = next(iter(head_map_lines(trace, 0, 0, words, words, width=80, color=False))).plain.splitlines()
    assert lines[0] == "    thcasaonthmathcasaonthma"
