"""record(values=True) keeps values; cross-attention is told apart by what a layer reads."""

import pytest
import torch
from transformers_models import TRANSFORMERS_MODELS, build, call

from qkv import interp
from qkv.models import GPT, GPTConfig

NAMED = {case.name: case for case in TRANSFORMERS_MODELS}


@pytest.mark.parametrize(
    ("name", "backend"), [(each.name, backend) for each in TRANSFORMERS_MODELS for backend in each.backends], ids=str
)
def test_weights_times_values_are_what_the_output_projection_is_given(name, backend):
    case = NAMED[name]
    model = build(case, backend)
    endings = ("c_proj", "o_proj", "attention.output.dense", "out_proj", "Attention.o")
    given = {}
    for module_name, module in model.named_modules():
        if module_name.endswith(endings) and "mlp" not in module_name:
            module.register_forward_pre_hook(
                lambda module, inputs, name=module_name: given.setdefault(name, []).append(inputs[0].detach())
            )
    with torch.no_grad(), interp.record(model, values=True) as trace:
        call(model, case)
    expected = [each for several in given.values() for each in several]
    assert len(expected) == len(trace.layers) > 0
    for layer, gathered in zip(trace.layers, expected, strict=True):
        assert layer.values is not None
        for batch in range(layer.batch):
            values = layer.values[batch].repeat_interleave(layer.heads // layer.values.shape[1], dim=0)
            mixed = (trace.weights(layer.name, batch=batch) @ values).transpose(0, 1).flatten(1)
            torch.testing.assert_close(mixed, gathered[batch].reshape(mixed.shape), rtol=1e-4, atol=1e-5)


def test_values_are_kept_only_on_request_and_joined_over_a_generation():
    model = GPT(GPTConfig(vocab_size=31, dim=32, layers=2, heads=4, kv_heads=2)).eval()
    tokens = torch.randint(0, 31, (1, 5))
    with interp.record(model) as plain:
        text = model.generate(tokens, 6)
    assert plain.layers[0].values is None
    with interp.record(model, values=True) as steps:
        model.generate(tokens, 6)
    with interp.record(model, values=True) as once:
        model(text[:, :-1])
    for one, other in zip(steps.layers, once.layers, strict=True):
        assert one.values is not None and one.values.shape == (1, 2, 10, 8)
        torch.testing.assert_close(one.values, other.values)


def test_values_are_saved_with_a_trace(tmp_path):
    model = GPT(GPTConfig(vocab_size=31, dim=32, layers=1, heads=4)).eval()
    with interp.record(model, values=True) as trace:
        model(torch.randint(0, 31, (1, 5)))
    trace.save(tmp_path / "trace")
    assert torch.equal(interp.Trace.load(tmp_path / "trace").layers[0].values, trace.layers[0].values)


@pytest.mark.parametrize("name", ["BART", "T5", "Whisper"])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_cross_attention_is_told_apart_whatever_its_sequence_is_called(name, backend):
    model = build(NAMED[name], backend)
    with torch.no_grad(), interp.record(model) as trace:
        call(model, NAMED[name])
    for layer in trace.layers:
        assert layer.cross == any(word in layer.name for word in ("encoder_attn", "EncDecAttention")), layer.name
