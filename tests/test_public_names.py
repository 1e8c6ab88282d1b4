"""The pinned public names: each exists with the signature that other code and measurements call."""

import importlib
import inspect
from typing import Any

import pytest

import qkv
from qkv.nn import Dot

ANY = object()  # a default whose value is not pinned
MORE = "..."  # further parameters are allowed, as long as they are optional

ATTENTION = (
    "query, key, value, mask=None, *, bias=None, scale=None, causal=False, dropout_p=0.0, hard=False, "
    "return_weights=False"
)
FORWARD = (
    "self, x, memory=None, *, mask=None, causal=False, token_mask=None, positions=None, cache=None, "
    "return_weights=False"
)
# dotted name, signature. None: the name alone is pinned. "call(…)": a call that must be possible, with any parameter
# names.
SIGNATURES = [
    ("qkv.attention", ATTENTION),
    (
        "qkv.MultiHeadAttention",
        "dim, heads, *, kv_heads=None, head_dim=None, score=Dot(), position=None, dropout=0.0, bias=True",
    ),
    ("qkv.MultiHeadAttention.forward", FORWARD),
    ("qkv.load", "call('folder')"),
    ("qkv.masks.causal", None),
    ("qkv.masks.sliding_window", None),
    ("qkv.masks.chunked", None),
    ("qkv.masks.prefix", None),
    ("qkv.masks.padding", None),
    ("qkv.positions.sinusoidal", None),
    ("qkv.positions.Rope", None),
    ("qkv.positions.Alibi", None),
    ("qkv.positions.T5Bias", None),
    ("qkv.positions.Shaw", None),
    ("qkv.nn.KVCache", None),
    ("qkv.nn.LayerKVCache", None),
    ("qkv.models.GPT", "config"),
    ("qkv.models.ViT", "config"),
    ("qkv.models.Encoder", "config"),
    ("qkv.models.Seq2Seq", "config"),
    ("qkv.models.Perceiver", "config"),
    ("qkv.models.Transcriber", "config"),
    ("qkv.models.RNN", "config"),
    ("qkv.models.RNNSeq2Seq", "config"),
    ("qkv.models.CNN", "config"),
    ("qkv.models.MLP", "config"),
    ("qkv.models.GPT.forward", "self, tokens, token_mask=None, cache=None, ..."),
    ("qkv.models.GPT.hidden_states", "self, tokens, token_mask=None, cache=None, ..."),
    ("qkv.models.GPT.generate", "self, tokens, max_new_tokens, *, temperature=ANY, top_k=ANY, top_p=ANY, ..."),
    ("qkv.models.Model.save", "self, target"),
    ("qkv.interp.record", "call('model')"),
    ("qkv.interp.trace", "model, inputs, ..."),
    ("qkv.interp.intervene", "model, *, ablate_heads=ANY, mask_edges=ANY, scale=ANY, pattern=ANY, patch=ANY, ..."),
    ("qkv.interp.classify_heads", None),
    ("qkv.interp.ablation_sweep", None),
    ("qkv.interp.activation_patching", None),
    ("qkv.interp.logit_lens", None),
    ("qkv.interp.attribution", None),
    ("qkv.interp.Trace.weights", "self, layer, head=ANY, ..."),
    ("qkv.interp.Trace.map", None),
    ("qkv.interp.Trace.top", None),
    ("qkv.interp.Trace.save", None),
    ("qkv.interp.Trace.load", None),
    ("qkv.check.run", "target, contract=None, **promises, ..."),
    ("qkv.check.assert_sound", "call('target', causal=True)"),
    ("qkv.check.Contract", None),
    ("qkv.claims.run", "name, seed=0, ..."),
    ("qkv.byhand.solve", None),
    ("qkv.byhand.verify", None),
    ("qkv.byhand.Solution", None),
    ("qkv.training.train", "model, data, objective, config, folder, ..."),
    ("qkv.training.run_recipe", "call('vit-digits')"),
    ("qkv.training.TrainConfig", None),
    ("qkv.training.Run", None),
]

GPT_FIELDS = "vocab_size max_length dim layers heads kv_heads head_dim mlp_dim norm_order dropout"
VIT_FIELDS = "image_size patch_size num_classes dim layers heads mlp_dim norm_order dropout"
FIELDS = [
    ("qkv.models.GPTConfig", GPT_FIELDS),
    ("qkv.models.ViTConfig", VIT_FIELDS),
    ("qkv.models.EncoderConfig", "vocab_size max_length dim layers heads mlp_dim norm_order dropout"),
    ("qkv.models.Seq2SeqConfig", "vocab_size max_length dim heads mlp_dim norm_order dropout"),
    ("qkv.models.PerceiverConfig", "vocab_size max_length dim layers heads mlp_dim norm_order dropout"),
    ("qkv.models.TranscriberConfig", "dim layers heads mlp_dim dropout"),
    ("qkv.models.RNNConfig", "vocab_size dim layers dropout"),
    ("qkv.models.RNNSeq2SeqConfig", "vocab_size dim layers dropout"),
    ("qkv.models.CNNConfig", "image_size num_classes dropout"),
    ("qkv.models.MLPConfig", "image_size num_classes dropout"),
    ("qkv.check.Report", "kind contract findings"),
    ("qkv.check.Finding", "check verdict score evidence hint"),
    ("qkv.claims.ClaimResult", "name statement verdict condition numbers seed"),
]


def find(dotted: str) -> Any:
    """The object of a dotted name, through modules and attributes."""
    value: Any = qkv
    for part in dotted.split(".")[1:]:
        if not hasattr(value, part) and inspect.ismodule(value):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def parse(signature: str) -> list[inspect.Parameter]:
    """The parameters that a pinned signature lists."""
    source = f"def pinned({signature.removesuffix(MORE).rstrip(', ')}): ..."
    scope: dict[str, Any] = {"ANY": ANY, "Dot": Dot}
    exec(source, scope)
    return list(inspect.signature(scope["pinned"]).parameters.values())


@pytest.mark.parametrize(("name", "signature"), SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_public_name_has_its_pinned_signature(name, signature):
    found = find(name)
    if signature is None:
        assert callable(found) or inspect.ismodule(found)
        return
    if signature.startswith("call("):
        eval(signature, {"call": inspect.signature(found).bind})
        return
    actual = inspect.signature(found).parameters
    pinned = parse(signature)
    for place, parameter in enumerate(pinned):
        assert parameter.name in actual, f"{name} lacks {parameter.name}: {inspect.signature(found)}"
        other = actual[parameter.name]
        assert (parameter.default is parameter.empty) == (other.default is other.empty), parameter.name
        if parameter.default is not ANY:
            assert other.default == parameter.default, parameter.name
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:  # what callers may pass by place stays in its place
            assert other.kind is parameter.kind and [*actual].index(parameter.name) == place, parameter.name
    others = [actual[each] for each in actual if each not in {parameter.name for parameter in pinned}]
    if not signature.endswith(MORE):
        assert not others, f"{name} has more parameters than pinned: {others}"
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [each.name for each in others if each.default is each.empty and each.kind not in variadic]
    assert not required, f"{name} requires more than pinned: {required}"


@pytest.mark.parametrize(("name", "fields"), FIELDS, ids=[name for name, _ in FIELDS])
def test_public_dataclass_is_frozen_and_has_its_pinned_fields(name, fields):
    found = find(name)
    assert found.__dataclass_params__.frozen
    assert set(fields.split()) <= set(found.__dataclass_fields__) | {
        each for each, value in vars(found).items() if isinstance(value, property)
    }


def test_model_num_parameters_is_a_property():
    assert isinstance(inspect.getattr_static(qkv.models.Model, "num_parameters"), property)


def test_report_ok_can_be_read():
    report = find("qkv.check.Report")
    assert "ok" in report.__dataclass_fields__ or isinstance(inspect.getattr_static(report, "ok"), property)
