"""FastDecoder gives the logits of the model, and is not used where a module is hooked or replaced."""

import pytest
import torch

from qkv.interp import record
from qkv.models import GPT, GPTConfig
from qkv.models.fast_decoding import MIN_TOKENS, MIN_TOKENS_TO_REARRANGE, FastDecoder, can_decode_fast
from qkv.nn import Dot
from qkv.nn.rope import Rope

SMALL = {"vocab_size": 19, "max_length": 96, "dim": 16, "layers": 3, "heads": 4}
KINDS = {
    "gpt-2": {"activation": "gelu-tanh", "tie_embeddings": True},
    "llama": {"position": Rope(pairing="halves"), "norm": "rms", "activation": "swiglu", "bias": False, "kv_heads": 2},
    "qwen": {"position": "rope", "score": Dot(qk_norm=True), "head_dim": 6, "attention_bias": "qkv"},
    "sinusoids, relu": {"position": "sinusoidal", "activation": "relu"},
    "no positions, sharp": {"position": "none", "score": Dot(scale=3.0)},
    "no layers": {"layers": 0},
}


def model_of(**options: object) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SMALL, **options})).double().eval()  # pyright: ignore
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@torch.no_grad()
@pytest.mark.parametrize("room", [MIN_TOKENS, MIN_TOKENS_TO_REARRANGE])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_decoder_equals_the_model(kind: str, room: int):
    model = model_of(**KINDS[kind])
    tokens = torch.randint(0, 19, (2, 5 + room))
    expected = model(tokens)
    cache = model.new_cache()
    model(tokens[:, :5], cache=cache)
    decoder = model.fast_decoder(cache, room)
    assert isinstance(decoder, FastDecoder)
    for place in range(5, 5 + room):
        assert torch.allclose(decoder(tokens[:, place]), expected[:, place], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    "options", [{"sliding_window": 4}, {"position": "alibi"}, {"norm_order": "post"}, {"score": Dot(scale=0.0)}]
)
def test_can_decode_fast_is_false_for_unsupported_options(options: dict):
    assert can_decode_fast(model_of())
    assert not can_decode_fast(model_of(**options))


def test_can_decode_fast_is_false_with_hooks_recording_or_replaced_modules():
    model = model_of()
    hook = model.blocks[1].attention.to_q.register_forward_hook(lambda *_: None)  # pyright: ignore
    assert not can_decode_fast(model)
    hook.remove()
    assert can_decode_fast(model)
    with record(model):
        assert not can_decode_fast(model)
    model.blocks[0].feed_forward = torch.nn.Sequential(torch.nn.Identity())  # pyright: ignore
    assert not can_decode_fast(model)


def test_fast_decoding_does_not_change_the_weights():
    model = model_of()
    before = {name: (tensor.data_ptr(), tensor.stride(), tensor._version) for name, tensor in model.named_parameters()}
    model.generate(torch.tensor([[1, 2]]), MIN_TOKENS_TO_REARRANGE + 2)
    after = {name: (tensor.data_ptr(), tensor.stride(), tensor._version) for name, tensor in model.named_parameters()}
    assert before == after


def test_fast_decoding_ends_at_the_stop_token():
    model = model_of()
    free = model.generate(torch.tensor([[1, 2, 3]]), 30)[0].tolist()
    stop = free[12]
    found = model.generate(torch.tensor([[1, 2, 3]]), 30, stop_token=stop)[0].tolist()
    assert found == free[: free.index(stop, 3) + 1]
