"""One mistake is charged once: what follows from it costs nothing, several mistakes add up, and the line is theirs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from course_submissions import COURSES, NAMES, VIT
from handed_in import archive, notebook
from local_sandbox import LocalSandbox
from submissions import CAUSAL, SYNTHESIZER

from qkv.check.grading import grade as grade_module
from qkv.check.grading import load_rubric
from qkv.check.grading.feedback import feedback_markdown
from qkv.check.grading.reading import read_submission

DROPOUT = ("self.drop(att)", "nn.functional.dropout(att, 0.1)")
OVER_QUERIES = ("att.softmax(-1)", "att.softmax(-2)")
DETACHED = ("(att @ v)", "(att @ v.detach())")
NO_SCALE = (" / math.sqrt(k.shape[-1])", "")


@pytest.fixture(autouse=True)
def _local_sandbox(monkeypatch):
    monkeypatch.setattr(grade_module, "Sandbox", LocalSandbox)


def grade_source(rubric, source, tmp_path, name="ada.py"):
    path = tmp_path / name
    path.write_bytes(source if isinstance(source, bytes) else source.encode("utf-8"))
    return grade_module.grade_file(load_rubric(rubric), path, "ada", 7)


def replaced(source, *changes):
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ([NO_SCALE], 8),
        ([DROPOUT], 9),
        ([DROPOUT, NO_SCALE], 7),
        ([DROPOUT, NO_SCALE, DETACHED], 6),
        ([OVER_QUERIES, DETACHED], 5),
    ],
    ids=["scale", "dropout", "two mistakes", "three mistakes", "softmax and detached"],
)
def test_points_of_several_mistakes_add_up(changes, total, tmp_path):
    grade = grade_source("causal-self-attention", replaced(CAUSAL, *changes), tmp_path)
    assert grade.total == total, grade.mistakes
    assert grade.total + sum(mistake.points for mistake in grade.mistakes) == grade.possible
    lost = [part.name for part in grade.properties if part.points < part.possible]
    assert len(grade.mistakes) == len(changes)
    assert all(any(name in mistake.property for mistake in grade.mistakes) for name in lost)


def test_a_proven_cause_is_one_entry_with_its_line_and_fix(tmp_path):
    grade = grade_source("causal-self-attention", replaced(CAUSAL, OVER_QUERIES), tmp_path)
    (mistake,) = grade.mistakes
    assert mistake.property == "no future, softmax over keys, equals the formula"
    assert mistake.where is not None
    assert "softmax(-2)" in mistake.where.text
    read = feedback_markdown(grade, load_rubric("causal-self-attention"))
    assert "**Exact cause:** the softmax is over the queries." in read
    assert (
        read.index("Exact cause") < read.index("**Measured:**") < read.index("**Fix:** take the softmax over the keys")
    )
    excused = next(part for part in grade.properties if part.name == "scale 1/√d")
    assert excused.points == 1
    assert "fails only because" in excused.findings[0].evidence


def test_dropout_in_eval_points_at_the_call_without_training(tmp_path):
    source = replaced(CAUSAL, DROPOUT)
    (mistake,) = grade_source("causal-self-attention", source, tmp_path).mistakes
    assert mistake.where is not None
    assert mistake.where.text.strip() == "att = nn.functional.dropout(att, 0.1)"


def test_an_output_of_noise_still_earns_nothing(tmp_path):
    noise = replaced(CAUSAL, ("return self.proj(", "return torch.randn_like(x) + 0 * self.proj("))
    grade = grade_source("causal-self-attention", noise, tmp_path)
    assert grade.total == 0
    assert "same for every input" in str(grade.remark) or "noise" in str(grade.remark)


def test_blocks_in_a_python_list_are_explained(tmp_path):
    listed = replaced(VIT, ("nn.ModuleList([EncoderBlock(", "list([EncoderBlock("))
    grade = grade_source("nyu-vit-model", listed, tmp_path)
    assert grade.total >= 6
    assert any("nn.ModuleList" in str(mistake.fix) for mistake in grade.mistakes)


def test_a_missing_batch_first_is_one_mistake_for_every_layer_of_torch(tmp_path):
    block = """
from torch import nn

class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, mlp_dim, dropout=0.0):
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(dim, heads, mlp_dim, dropout, activation="gelu", norm_first=True)

    def forward(self, x):
        return self.inner(x)
"""
    grade = grade_source("nyu-vit-encoder-block", block, tmp_path)
    (mistake,) = grade.mistakes
    assert mistake.property == "sees everything, independent images"
    assert "nn.TransformerEncoderLayer takes (tokens, batch, features)" in str(mistake.fix)


def test_the_line_of_a_mistake_is_in_the_method_not_in_a_docstring_or_in_code_around_it(tmp_path):
    source = '''
import torch
from torch.utils.data import Dataset

class NameDataset(Dataset):
    """x = question MASK answer MASK."""
    MASK_CHAR, PAD_CHAR = "\\u2047", "\\u25a1"

    def __init__(self, data, pretraining_dataset):
        self.stoi, self.size = pretraining_dataset.stoi, pretraining_dataset.block_size
        self.rows = [line.split("\\t") for line in data.splitlines()]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        """x = nothing yet."""
        q, a = self.rows[i]
        x = q + a + self.MASK_CHAR
        x = x + self.PAD_CHAR * (self.size - len(x))
        y = self.PAD_CHAR * (len(q) - 1) + x[len(q):]
        return (torch.tensor([self.stoi[c] for c in part]) for part in (x[:-1], y))
'''
    cells = notebook("x = 'MASK'\nprint(x)", source, "x = 1 + 2  # MASK")
    (mistake,) = grade_source("cs224n-name-dataset", cells, tmp_path, "ada.ipynb").mistakes
    assert mistake.property == "x: question ⁇ answer ⁇"
    assert mistake.where is not None
    assert (mistake.where.cell, mistake.where.text.strip()) == (2, "x = q + a + self.MASK_CHAR")


def test_variables_of_a_function_do_not_make_the_cells_around_it_run(tmp_path):
    cells = notebook(
        NAMES.replace("pairs", "rows"),
        "data = open('birth_places.tsv').read()",
        "dataset = NameDataset(pretraining_dataset, data)\nx, y = dataset[0]",
    )
    grade = grade_source("cs224n-name-dataset", cells, tmp_path, "ada.ipynb")
    assert (grade.total, grade.notes) == (10, ())


def test_what_follows_from_a_statement_that_fails_is_not_noted(tmp_path):
    cells = notebook(
        "SIZES = open('sizes.txt').read()",
        "FIRST = SIZES[0]",
        replaced(NAMES, ("class Name", "TWO = FIRST\nclass Name")),
    )
    grade = grade_source("cs224n-name-dataset", cells, tmp_path, "ada.ipynb")
    assert len(grade.notes) <= 1


def test_two_files_that_claim_the_exercise_are_refused_by_name(tmp_path):
    both = archive({"old/attention.py": CAUSAL, "new/attention.py": CAUSAL + "\n# changed\n"})
    grade = grade_source("causal-self-attention", both, tmp_path, "ada.zip")
    assert grade.refused is not None
    assert "they differ" in grade.refused


def test_a_file_in_utf_16_is_graded_with_a_note(tmp_path):
    path = tmp_path / "ada.py"
    path.write_text(NAMES, encoding="utf-16")
    submission = read_submission(path)
    assert submission.notes == ("it is saved as UTF-16, which Python cannot run: save it as UTF-8",)


def test_training_while_the_file_is_loaded_gets_advice_and_no_wrong_line(tmp_path, monkeypatch):
    def stop(self):
        raise grade_module.SubmissionError("it did not answer within 5 seconds of computing", "time")

    monkeypatch.setattr(LocalSandbox, "describe", stop)
    (mistake,) = grade_source("cs224n-name-dataset", NAMES, tmp_path).mistakes
    assert "__main__" in str(mistake.fix)
    assert mistake.where is None


@pytest.mark.parametrize(
    ("change", "total", "words", "line"),
    [
        ((" == 0", " == 1"), 6, "the mask is inverted", "== 1"),
        (("self.proj(", "("), 9, "the output projection is never applied", "return"),
    ],
    ids=["inverted mask", "no projection"],
)
def test_a_mistake_that_the_outputs_show_is_one_entry_with_its_cause(change, total, words, line, tmp_path):
    source = replaced(CAUSAL, change).replace('float("-inf")', "-1e10")
    grade = grade_source("causal-self-attention", source, tmp_path)
    (mistake,) = grade.mistakes
    assert grade.total == total
    assert words in mistake.fix
    assert line in mistake.where.text


def test_a_detached_part_is_not_explained_with_the_code_of_the_grader(tmp_path):
    grade = grade_source("causal-self-attention", replaced(CAUSAL, DETACHED), tmp_path)
    assert "part of the computation is detached" in grade.mistakes[0].fix


@pytest.mark.parametrize(
    ("rubric", "source", "change", "fix"),
    [
        (
            "causal-self-attention",
            CAUSAL,
            ("self.mask[:t, :t]", "self.mask"),
            "cut the mask to the length of the sequence: mask[:, :, :T, :T]",
        ),
        (
            "dense-synthesizer",
            SYNTHESIZER,
            ("(h @ self.w2 + self.b2)[..., :t]", "h @ self.w2 + self.b2"),
            None,
        ),
    ],
    ids=["mask", "w2"],
)
def test_a_layer_that_takes_only_whole_blocks_loses_the_points_for_running(rubric, source, change, fix, tmp_path):
    grade = grade_source(rubric, replaced(source, change), tmp_path)
    (mistake,) = grade.mistakes
    assert (mistake.property, grade.total) == ("runs", 9)
    assert "size of tensor" in mistake.evidence
    assert "for a batch of 2 sequences of 4 tokens" in mistake.evidence
    assert fix is None or (mistake.fix == fix and fix in grade.remark)


def test_an_import_that_a_graded_function_needs_is_still_an_error(tmp_path):
    source = NAMES.replace("class NameDataset", "from course_files import helper\n\nclass NameDataset")
    unneeded = grade_source("cs224n-name-dataset", source, tmp_path)
    assert (unneeded.total, unneeded.mistakes) == (10, ())
    assert "there is no module 'course_files'" in unneeded.notes[0]
    needed = grade_source(
        "cs224n-name-dataset", source.replace("def __len__", "h = helper\n\n    def __len__"), tmp_path
    )
    assert needed.total == 0
    assert "No module named 'course_files'" in needed.remark


@pytest.mark.parametrize(
    ("change", "total", "lost", "words"),
    [
        (("        return self.proj(", "        return x + self.proj("), 9, "equals the formula", "the input is added"),
        (
            ("        b, t, c = x.shape\n", "        x = x[:1].expand_as(x)\n        b, t, c = x.shape\n"),
            8,
            "deterministic, independent rows, equals the formula",
            "every row of a batch gets the output of the first one",
        ),
        (("        b, t, c = x.shape\n", "        x = x[0][None]\n        b, t, c = x.shape\n"), 9, "runs", ""),
    ],
    ids=["residual", "first row", "x[0]"],
)
def test_a_mistake_around_attention_costs_only_what_it_breaks(change, total, lost, words, tmp_path):
    grade = grade_source("causal-self-attention", replaced(CAUSAL, change), tmp_path)
    (mistake,) = grade.mistakes
    assert (grade.total, mistake.property) == (total, lost)
    assert words in str(mistake.fix)


def test_a_block_without_an_mlp_loses_only_the_mlp(tmp_path):
    mlp = "nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, embed_dim), "
    without = ((f"{mlp}nn.Dropout(dropout))", "None"), ("return x + self.mlp(self.norm2(x))", "return x"))
    (mistake,) = grade_source("nyu-vit-encoder-block", replaced(VIT, *without), tmp_path).mistakes
    assert mistake.property == "MLP"


def test_a_file_that_is_not_there_gets_advice(tmp_path):
    source = replaced(NAMES, ("class NameDataset", "open('weights.pt')\n\nclass NameDataset"))
    (mistake,) = grade_source("cs224n-name-dataset", source, tmp_path).mistakes
    assert "opens a file that is not there" in mistake.fix
    assert "weights.pt" in mistake.where.text


def test_post_norm_is_not_called_a_missing_residual_connection(tmp_path):
    _, right, cases = COURSES["cs224n-perceiver"]
    (mistake,) = grade_source("cs224n-perceiver", replaced(right, cases["post-norm"][0]), tmp_path).mistakes
    assert "(post-norm)" in mistake.evidence
    assert "residual" not in mistake.fix


def test_a_syntax_error_is_one_entry_for_all_parts_of_a_homework(tmp_path):
    grade = grade_source("nyu-vit", "class ViT(:\n", tmp_path)
    (mistake,) = grade.mistakes
    assert (mistake.property, mistake.points) == ("all properties", 40)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("torch.relu(", "nn.functional.gelu("), "is GELU, not ReLU"),
        (("torch.relu(", "torch.tanh("), "is tanh, not ReLU"),
        (("self.proj(", "("), "the output projection is never applied"),
    ],
    ids=["gelu", "tanh", "no projection"],
)
def test_the_wrong_part_of_a_synthesizer_is_named(change, words, tmp_path):
    grade = grade_source("dense-synthesizer", replaced(SYNTHESIZER, change), tmp_path)
    (mistake,) = grade.mistakes
    assert grade.total == 8
    assert words in mistake.fix


@pytest.mark.parametrize("change", [("x[:, 0]", "x[0]"), ("x[:, 0]", "x.mean(dim=0)")], ids=["x[0]", "mean"])
def test_the_wrong_axis_of_a_vit_is_named(change, tmp_path):
    grade = grade_source("nyu-vit-model", replaced(VIT, change), tmp_path)
    assert "the class token is x[:, 0], not x[0]" in grade.remark


@pytest.mark.parametrize(
    ("change", "words", "line"),
    [
        (("        loss.backward()\n", ""), "loss.backward() is never called", "criterion"),
        (("        optimizer.step()\n", ""), "optimizer.step() is never called", "backward"),
        (
            (
                "        loss.backward()\n        optimizer.step()\n",
                "        optimizer.step()\n        loss.backward()\n",
            ),
            "optimizer.step() comes before loss.backward()",
            "step",
        ),
    ],
    ids=["no backward", "no step", "step first"],
)
def test_why_nothing_is_trained_is_told_apart(change, words, line, tmp_path):
    source = replaced(VIT, change)
    if "before" in words:
        source = source.replace("loss = criterion", "optimizer.zero_grad(); loss = criterion")
    (mistake,) = grade_source("nyu-vit-training-step", source, tmp_path).mistakes
    assert words in mistake.fix
    assert line in mistake.where.text


@pytest.mark.parametrize("clip", ["torch.nn.utils.clip_grad_norm_", "clip_grad_norm_"])
def test_clipped_gradients_cost_nothing(clip, tmp_path):
    step = f"        {clip}(model.parameters(), 0.01)\n        optimizer.step()\n"
    source = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n"
    source += replaced(VIT, ("        optimizer.step()\n", step))
    grade = grade_source("nyu-vit-training-step", source, tmp_path)
    assert (grade.total, grade.remark) == (10, None)


def test_indices_outside_the_vocabulary_are_shown_as_numbers(tmp_path):
    change = ("self.encode(target)", "torch.where(torch.arange(127) < len(question) - 1, -100, self.encode(target))")
    (mistake,) = grade_source("cs224n-name-dataset", replaced(NAMES, change), tmp_path).mistakes
    assert "y has -100 for the question" in mistake.evidence


@pytest.mark.parametrize(
    ("rubric", "change", "words"),
    [
        ("cs224n-char-corruption", ("out.ljust(", "out.rjust("), "the padding comes before the text"),
        ("cs224n-char-corruption", ("self.MASK_CHAR + text[end:]", "self.MASK_CHAR + text[end + 1:]"), "lost: 1 char"),
        ("cs224n-char-corruption", ("+ text[begin:end]", "+ text[begin:end][::-1]"), "the masked span is reversed"),
        (
            "cs224n-char-corruption",
            ("self.MASK_CHAR + text[end:]", "self.MASK_CHAR + text[begin:]"),
            "also in the suffix",
        ),
        (
            "cs224n-finetuning",
            ("return tconf, Trainer(model, questions", "return Trainer(model, questions"),
            "return tconf, trainer_obj",
        ),
        ("cs224n-rope", ("10000.0 **", "1000.0 **"), "the base is 1000"),
        ("cs224n-rope", (".flatten(-2)", ""), "put the pairs back into one axis"),
        ("cs224n-rope", ("b * cos + a * sin", "b * cos + (a * cos - b * sin) * sin"), "after its rotation"),
        ("cs224n-name-dataset", ('line.split("\\t")', 'line.split(" ", 1)'), "the line is not split at the tab"),
    ],
)
def test_the_cause_of_one_mistake_is_one_entry(rubric, change, words, tmp_path):
    (mistake,) = grade_source(rubric, replaced(COURSES[rubric][1], change), tmp_path).mistakes
    assert words in mistake.fix


def test_an_mlp_of_another_size_costs_only_the_mlp(tmp_path):
    source = replaced(VIT, ("nn.Linear(embed_dim, hidden_dim)", "nn.Linear(embed_dim, 2 * embed_dim)"))
    source = replaced(source, ("nn.Linear(hidden_dim, embed_dim)", "nn.Linear(2 * embed_dim, embed_dim)"))
    (mistake,) = grade_source("nyu-vit-encoder-block", source, tmp_path).mistakes
    assert mistake.property == "MLP"
    assert "the hidden layer has 64 features, expected mlp_dim = 80" in mistake.evidence


@pytest.mark.parametrize("added", [False, True], ids=["filled", "added"])
def test_a_token_hidden_from_itself_is_one_mistake_however_it_is_hidden(added, tmp_path):
    """Scores of the first token that are all −1e9 still have a softmax, and small steps are lost in them."""
    hide = (
        "att + torch.ones(t, t).triu(0).mul(-1e9)" if added else "att.masked_fill(torch.ones(t, t).triu(0) > 0, -1e9)"
    )
    line = next(line for line in CAUSAL.split("\n") if "masked_fill" in line)
    source = replaced(CAUSAL, (line, f"{line[: len(line) - len(line.lstrip())]}t = x.shape[1]; att = {hide}"))
    (mistake,) = grade_source("causal-self-attention", source, tmp_path).mistakes
    assert mistake.property == "no future, whole past, equals the formula"
    assert "a query does not see itself" in str(mistake.fix)


def test_a_projection_for_each_head_is_found_inside_other_lists(tmp_path):
    block = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        d = dim // heads
        parts = lambda: nn.ModuleDict({name: nn.Linear(dim, d) for name in ("q", "k", "v")})
        self.heads, self.out = nn.ModuleList(parts() for _ in range(heads)), nn.Linear(dim, dim)

    def forward(self, x):
        outs = []
        for h in self.heads:
            weights = torch.softmax(h["q"](x) @ h["k"](x).mT / h["q"].out_features ** 0.5, dim=-1)
            outs.append(weights @ h["v"](x))
        return self.out(torch.cat(outs, dim=-1))

class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, mlp_dim, dropout=0.0):
        super().__init__()
        mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))
        self.parts = nn.ModuleList([Attention(dim, heads), mlp])
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])

    def forward(self, x):
        for part, norm in zip(self.parts, self.norms):
            x = x + part(norm(x))
        return x
"""
    grade = grade_source("nyu-vit-encoder-block", block, tmp_path)
    assert grade.total == grade.possible, grade.mistakes


def test_fused_keys_and_values_are_not_taken_for_an_mlp(tmp_path):
    perceiver = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = config.n_embd
        self.heads, self.n1, self.n2 = config.n_head, nn.LayerNorm(c), nn.LayerNorm(c)
        self.wq, self.wkv, self.wo = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)
        self.mlp = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def attend(self, keys, queries):
        q, (k, v) = self.wq(queries), self.wkv(keys).chunk(2, dim=-1)
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (q, k, v))
        return self.wo(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

class DownProjectBlock(Block):
    def __init__(self, config):
        super().__init__(config)
        self.C = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, config.bottleneck_dim, config.n_embd)))

    def forward(self, x_input):
        c = self.C.expand(x_input.shape[0], -1, -1)
        out = c + self.attend(x_input, self.n1(c))
        return out + self.mlp(self.n2(out))

class UpProjectBlock(Block):
    def forward(self, y, x_input):
        out = x_input + self.attend(self.n1(y), x_input)
        return out + self.mlp(self.n2(out))
"""
    right = grade_source("cs224n-perceiver", perceiver, tmp_path)
    assert right.total == right.possible, right.mistakes
    head, tail = perceiver.split("class UpProjectBlock")
    (mistake,) = grade_source(
        "cs224n-perceiver",
        head + "class UpProjectBlock" + tail.replace("out + self.mlp(self.n2(out))", "out"),
        tmp_path,
    ).mistakes
    assert mistake.property == "up: layer norms, MLP"
    not_normalized = replaced(perceiver, ("self.attend(x_input, self.n1(c))", "self.attend(x_input, c)"))
    (mistake,) = grade_source("cs224n-perceiver", not_normalized, tmp_path).mistakes
    assert mistake.property == "down: layer norms, MLP"


def test_the_starter_code_is_found_in_a_folder_that_was_not_handed_in(tmp_path):
    source = "import src.trainer as of_the_course\n" + COURSES["cs224n-finetuning"][1]
    grade = grade_source("cs224n-finetuning", source, tmp_path)
    assert grade.total == grade.possible, grade.mistakes
