"""`--adapter`: code that cannot be called by guessing, in other languages and layouts."""

import shutil
from pathlib import Path

import pytest

from qkv.check import run
from qkv.cli.main import run as command

ADAPTERS = Path(__file__).parents[2] / "docs/examples/adapters"

EXAMPLES = {
    "numpy_attention": ("attention", {"contract": "textbook"}),
    "packed_attention": ("kernel", {"contract": "textbook"}),
    "ragged_attention": ("RaggedAttention", {"kind": "causal", "padding": True}),
    "paged_attention": ("PagedAttention", {"contract": "textbook", "cache": True}),
    "perceiver": ("PointPerceiver", {}),
    "audio_model": ("Listener", {}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_run_checks_an_example_by_its_adapter(name):
    target, promises = EXAMPLES[name]
    file = ADAPTERS / f"{name}.py"
    report = run(f"{file}:{target}", adapter=file, **promises)
    assert report.ok, report.failed
    assert f"by the adapter {name}.py" in report.how


def test_run_tries_the_sizes_of_the_weights_for_an_adapter_without_dim(tmp_path):
    (tmp_path / "layer.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class NormedKeys(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm, self.qkv = nn.RMSNorm(8), nn.Linear(32, 96)\n"  # the norm is of a head
        "    def forward(self, x):\n"
        "        q, k, v = (y.unflatten(-1, (4, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))\n"
        "        out = nn.functional.scaled_dot_product_attention(q, self.norm(k), v, is_causal=True)\n"
        "        return out.transpose(1, 2).flatten(2)\n"
    )
    (tmp_path / "adapter.py").write_text("def call(target, x): return target(x)\n")
    report = run(f"{tmp_path}/layer.py:NormedKeys", adapter=tmp_path / "adapter.py", kind="causal")
    assert report.ok, report.failed


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_run_checks_a_cpp_function_by_its_adapter(tmp_path):
    report = run(None, adapter=ADAPTERS / "cpp_attention.py", kind="causal", scale="head")
    assert report.kind == "causal"
    assert report.ok, report.failed
    for name in ("cpp_attention.py", "attention.cpp"):
        text = (ADAPTERS / name).read_text()
        (tmp_path / name).write_text(
            text.replace("j <= i", "j <= i + 1 && j < t").replace("weights(i + 1)", "weights(t)")
        )
    assert "causal" in {
        finding.check for finding in run(None, adapter=tmp_path / "cpp_attention.py", kind="causal").failed
    }


def test_run_checks_a_jax_function_by_its_adapter():
    pytest.importorskip("jax", reason="JAX is not installed")
    file = ADAPTERS / "jax_attention.py"
    report = run(f"{file}:attention", adapter=file, kind="causal", scale="head")
    assert report.kind == "causal"
    assert report.ok, report.failed


def test_run_catches_bugs_behind_an_adapter(tmp_path):
    text = (ADAPTERS / "paged_attention.py").read_text()
    file = tmp_path / "paged.py"
    file.write_text(text.replace("length + x.shape[1])", "length + x.shape[1] - (length > 7))"))
    failed = {finding.check for finding in run(f"{file}:PagedAttention", adapter=file, kind="causal").failed}
    assert any(name.startswith("cache") for name in failed)
    text = (ADAPTERS / "numpy_attention.py").read_text()
    file.write_text(text.replace("np.sqrt(queries.shape[-1])", "queries.shape[-1]"))
    assert "scale" in {finding.check for finding in run(f"{file}:attention", "textbook", adapter=file).failed}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "needs a function call(target, …)"),
        ("def call(target, y): ...", "takes 'y', which is not known"),
        ("def call(target, mask): ...", "must take q, k, v or x or tokens"),
        ("ARRAYS = 'jax'\ndef call(target, x): ...", 'must be "torch" or "numpy"'),
        ("def call(target, x): return x", "needs a constant DIM"),
        ("DIM = 8\ndef call(target, x): return 3", "must return an output of shape (2, 12, …); got int"),
        ("DIM = 8\ndef call(target, x): return x / None", "could not be called by"),
        ("def call(target, q, k, v): return q[0]", "must return an output of shape (2, 4, 5, 8); got (4, 5, 8)"),
        ("def build(): return 1 / 0\ndef call(target, x): return x", "build of the adapter"),
        ("step = 3\ndef call(target, x): return x", "step of the adapter"),
    ],
)
def test_check_explains_a_wrong_adapter_in_one_sentence(text, said, tmp_path, capsys):
    (tmp_path / "adapter.py").write_text(text)
    assert command(["check", "--adapter", str(tmp_path / "adapter.py")]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
