"""CompiledDecoder gives the logits of the model, in float32 and int8; without a compiler the results are the same."""

import logging
import shutil
import subprocess
import sys

import pytest
import torch

from qkv.models import GPT, GPTConfig, compile_kernel, compiled_decoding
from qkv.models.compile_kernel import load_kernel
from qkv.models.compiled_decoding import MAX_PROMPT, MAX_ROWS, SOURCE, CompiledDecoder
from qkv.models.fast_decoding import FastDecoder
from qkv.nn import Dot
from qkv.nn.rope import Rope

SMALL = {"vocab_size": 19, "max_length": 96, "dim": 16, "layers": 3, "heads": 4}
KINDS = {
    "gpt-2": {"activation": "gelu-tanh", "tie_embeddings": True, "dim": 40},  # 40: no multiple of the vectors
    "llama": {"position": Rope(pairing="halves"), "norm": "rms", "activation": "swiglu", "bias": False, "kv_heads": 2},
    "qwen": {"position": "rope", "score": Dot(qk_norm=True), "head_dim": 6, "attention_bias": "qkv"},
    "partial rope": {"position": Rope(rotary_dim=2), "dim": 36, "mlp_dim": 37},
    "sinusoids, relu": {"position": "sinusoidal", "activation": "relu"},
    "no positions, sharp": {"position": "none", "score": Dot(scale=3.0)},
}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, compile_kernel.COMPILERS)), reason="there is no C compiler here"
)


def model_of(**options: object) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SMALL, **options})).eval()  # pyright: ignore
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setattr(compiled_decoding, "load_kernel", lambda _: None)


@needs_compiler
@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_decoder_equals_the_model_after_a_cache(kind: str, rows: int):
    model = model_of(**KINDS[kind])
    tokens = torch.randint(0, 19, (rows, 15))
    expected = model(tokens)
    cache = model.new_cache()
    model(tokens[:, :5], cache=cache)
    decoder = model.fast_decoder(cache, 10)
    assert isinstance(decoder, CompiledDecoder)
    for place in range(5, 15):
        torch.testing.assert_close(decoder(tokens[:, place]), expected[:, place], atol=2e-4, rtol=2e-4)


@needs_compiler
@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_decoder_equals_the_model_on_a_prompt_in_chunks(kind: str, rows: int):
    model = model_of(**KINDS[kind])
    tokens = torch.randint(0, 19, (rows, 50))  # more than are read at once
    expected = model(tokens)
    decoder = CompiledDecoder(model, rows, 50)
    assert decoder.max_count < 47
    torch.testing.assert_close(decoder(tokens[:, :47]), expected[:, 46], atol=2e-4, rtol=2e-4)
    for place in range(47, 50):
        torch.testing.assert_close(decoder(tokens[:, place]), expected[:, place], atol=2e-4, rtol=2e-4)
    with pytest.raises(ValueError, match="room for 0 tokens"):
        decoder(tokens[:, 0])


@needs_compiler
@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_decoder_equals_the_quantized_model(kind: str):
    model = model_of(**KINDS[kind]).quantize("int8")
    tokens = torch.randint(0, 19, (2, 20))
    expected = model(tokens)
    decoder = CompiledDecoder(model, 2, 20)
    torch.testing.assert_close(decoder(tokens[:, :12]), expected[:, 11], atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(decoder(tokens[:, 12]), expected[:, 12], atol=2e-4, rtol=2e-4)


@needs_compiler
def test_compiled_decoder_gives_the_same_bits_with_one_and_two_threads():
    model, tokens, found = model_of(dim=64, mlp_dim=700), torch.randint(0, 19, (1, 30)), []
    threads = torch.get_num_threads()
    for count in (1, 2):
        try:
            torch.set_num_threads(count)
            found.append(CompiledDecoder(model, 1, 30)(tokens))
        finally:
            torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("length", [3, MAX_PROMPT + 1])
@pytest.mark.parametrize("quantized", [False, True])
def test_generate_gives_the_same_tokens_without_a_compiler(length: int, quantized: bool, no_kernel, monkeypatch):
    model = model_of(**KINDS["llama"])
    model = model.quantize("int8") if quantized else model
    prompt = torch.randint(0, 19, (2, length))
    slower = model.generate(prompt, 30)
    monkeypatch.undo()
    assert torch.equal(model.generate(prompt, 30), slower)
    assert torch.equal(model.generate(prompt, 30, use_cache=False), slower)


@torch.no_grad()
def test_fast_decoder_is_used_without_a_compiler_in_double_and_for_many_rows(monkeypatch):
    def decoder_of(model: GPT, rows: int) -> object:
        cache = model.new_cache()
        model(torch.zeros(rows, 2, dtype=torch.long), cache=cache)
        return model.fast_decoder(cache, 10)

    assert isinstance(decoder_of(model_of().double(), 1), FastDecoder)
    assert isinstance(decoder_of(model_of(), MAX_ROWS + 1), FastDecoder)
    monkeypatch.setattr(compiled_decoding, "load_kernel", lambda _: None)
    assert isinstance(decoder_of(model_of(), 1), FastDecoder)


def test_generate_refuses_tokens_outside_the_vocabulary():
    with pytest.raises(ValueError, match="from 0 to 18"):
        model_of().generate(torch.tensor([[1, 19]]), 10)


def test_load_kernel_says_once_that_there_is_no_compiler(monkeypatch, caplog):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compile_kernel, "COMPILERS", ("no-such-compiler",))
    load_kernel.cache_clear()
    with caplog.at_level(logging.WARNING, "qkv"):
        assert load_kernel(SOURCE) is None
        assert load_kernel(SOURCE) is None
    assert [record.getMessage() for record in caplog.records] == [
        "qkv: generation is slower than it could be, because no C compiler (cc, gcc, clang) was found"
    ]
    load_kernel.cache_clear()


@needs_compiler
def test_load_kernel_says_why_a_file_does_not_compile(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "broken.c"
    source.write_text("int main(", encoding="utf-8")
    with caplog.at_level(logging.WARNING, "qkv"):
        assert load_kernel(source) is None
    assert "broken.c did not compile" in caplog.text and "error" in caplog.text


@needs_compiler
def test_load_kernel_refuses_a_folder_that_others_can_write_to(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "qkv" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    load_kernel.cache_clear()
    assert load_kernel(SOURCE) is None
    assert "others can write to" in caplog.text
    load_kernel.cache_clear()


def test_qkv_no_compile_switches_the_kernel_off():
    code = "from qkv.models.compiled_decoding import *; print(load_kernel(SOURCE))"
    environment = {"QKV_NO_COMPILE": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n" and done.stderr == ""
