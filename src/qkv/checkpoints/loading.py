"""`qkv.load`: find and load a model from a checkpoint folder, a run folder, a hub id, or a bundled name.

A local path makes no network call. From the hub only safetensors and JSON files are fetched; pickles are never read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qkv._config import RECIPE_FILE
from qkv._files import read_json, read_limited
from qkv._panics import panics_as_errors
from qkv.checkpoints import bundled
from qkv.checkpoints.huggingface.folder import WEIGHTS_INDEX, load_hf, read_weights
from qkv.checkpoints.llama2c import load_llama2c, read_llama2c_tokenizer
from qkv.models import Model, folder
from qkv.models.folder import CONFIG, EXTRA_FILES, MAX_EXTRA_BYTES, MODEL_FOLDER, TOKENIZER, WEIGHTS, read_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
LAYERS = re.compile(r"layers?$|depth|blocks?$")
SIZE = re.compile(r"dim|size|width|channels|hidden|embd|inner|^d_|heads?$|positions|experts|length|latents|queries")
MAX_UNSTORED_SIZE = 10_000_000  # a size that no tensor need have, such as the longest text
MAX_UNSTORED_PARAMETERS = 10_000_000  # of tied weights and of parts that a folder may leave out
NETWORK_ERRORS = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError", "ReadTimeout", "NetworkError")
HUB_FILES = [CONFIG, WEIGHTS, WEIGHTS_INDEX, "model-?????-of-?????.safetensors"]
HUB_FILES += [
    name for name in EXTRA_FILES if name.endswith("_config.json") or name.startswith(("tokenizer", "special"))
]


def load(source: str | Path) -> Model:
    """Load a model; it is in eval mode.

    Args:
        source: one of
            - a folder written by `model.save(folder)`, or by Hugging Face's `save_pretrained` (GPT-2, OPT, Llama,
              Mistral, Qwen 2 and 3, BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT, ViT, BART);
            - the folder of a finished training run;
            - a llama2.c file (.bin);
            - a hub id such as "openai-community/gpt2", fetched by huggingface_hub if no folder has that name;
            - a bundled model such as "qkv:digits" (`qkv.checkpoints.bundled.names()` lists them).
    """
    path = resolve(source)
    if path.is_file():
        return load_llama2c(path)
    if "qkv" not in read_config(path):
        return load_hf(path)
    return folder.load(path, Model.registry)


def load_any(source: str | Path) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a model with qkv, or with transformers where qkv does not read the architecture.

    Returns:
        The model, in eval mode, and notes on how it was loaded.
    """
    path = resolve(source)
    try:
        return load(path), ()
    except ValueError as error:
        config = read_config(path) if path.is_dir() and (path / CONFIG).is_file() else {}
        if "qkv" in config or not isinstance(config.get("model_type"), str):
            raise
        return _load_with_transformers(path, config, error)


def _load_with_transformers(
    path: Path, config: dict[str, Any], refusal: ValueError
) -> tuple[nn.Module, tuple[str, ...]]:
    """Load with transformers' own class, from safetensors only and without code from the folder."""
    if remote := _remote_part(config):
        raise ValueError(f"{refusal}; it names {remote}, which would be downloaded: a local folder must be complete")
    _check_sizes(config, path)
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{refusal}; with transformers installed (pip install 'qkv[hf]') more can be read") from None
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ValueError(f"{path / CONFIG}: architectures must be a list of names, got {names!r}")
    named = bool(names) and isinstance(names[0], str)
    kind: Any = getattr(transformers, names[0], None) if named else transformers.AutoModel
    if not hasattr(kind, "from_pretrained"):
        raise ValueError(f"{refusal}; nor does transformers {transformers.__version__} know {names[0]!r}")
    with _offline(), _quiet(transformers):
        _check_parameters(transformers, kind, path)
    try:
        with _offline(), _quiet(transformers):
            model, report = kind.from_pretrained(
                path, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # whatever the library raises on a folder that it cannot read
        reason = " ".join(str(error).split())[:200]
        if "mismatched" in reason:  # the library prints a table, and says how to ignore it
            reason = f"its tensors do not have the shapes that {CONFIG} asks for"
        raise ValueError(f"{refusal}; transformers does not read it either: {reason}") from None
    lost = sorted(report.get("missing_keys") or []) + sorted(str(key) for key in report.get("mismatched_keys") or [])
    if lost:
        raise ValueError(f"{path} lacks {len(lost)} tensors that {type(model).__name__} needs, first {lost[0]}")
    return model.eval(), (f"{type(model).__name__}, loaded by transformers",)


def _check_sizes(config: Any, path: Path) -> None:
    """Raise a ValueError if a config asks for more layers than its folder has tensors, or for an impossible size.

    transformers would build such a model for hours, or fill the memory.
    """
    tensors = read_weights(path)
    num_numbers = sum(tensor.numel() for tensor in tensors.values())
    for key, value in _integers(config):
        if LAYERS.search(key) and value > len(tensors):
            raise ValueError(f"{path / CONFIG}: {key} is {value}, but the folder has {len(tensors)} tensors in all")
        if SIZE.search(key) and value > max(num_numbers, MAX_UNSTORED_SIZE):
            raise ValueError(f"{path / CONFIG}: {key} is {value}, but the folder has {num_numbers} numbers in all")


def _check_parameters(transformers: Any, kind: Any, path: Path) -> None:
    """Raise a ValueError if the model has many more parameters than its folder: transformers would make the rest up.

    Built on the meta device, which takes no memory: sizes may also come from defaults, or multiply.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    except Exception:  # whatever it is, from_pretrained says it
        return
    needed = sum(parameter.numel() for parameter in model.parameters())
    stored = sum(tensor.numel() for tensor in read_weights(path).values())
    if needed > 2 * stored + MAX_UNSTORED_PARAMETERS:
        raise ValueError(
            f"{path / CONFIG} describes a model of {needed:,} parameters, but the folder has {stored:,} numbers"
        )


def _integers(config: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers of a config and of the configs in it, each with its key."""
    if isinstance(config, dict | list):
        for name, value in config.items() if isinstance(config, dict) else ((key, each) for each in config):
            yield from _integers(value, name)
    elif isinstance(config, int) and not isinstance(config, bool):
        yield key, config


def _remote_part(config: Any) -> str | None:
    """The pretrained backbone that a config, or one inside it, asks to be downloaded; None if there is none."""
    if isinstance(config, list):
        return next((found for part in config if (found := _remote_part(part))), None)
    if not isinstance(config, dict):
        return None
    if config.get("use_pretrained_backbone"):
        return f"the pretrained backbone {config.get('backbone')!r}"
    return next((found for part in config.values() if (found := _remote_part(part))), None)


@contextmanager
def _offline() -> Iterator[None]:
    """Keep Hugging Face libraries from making requests inside the block; local_files_only does not reach all parts."""
    import huggingface_hub.constants as constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers from printing progress and tables inside the block; what is wrong is raised."""
    logging = transformers.utils.logging
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def load_tokenizer(source: Model | str | Path) -> Tokenizer:
    """Load the tokenizer of a model, of anything `load` accepts, or of a llama2.c tokenizer file (.bin).

    It is a `Tokenizer` of the tokenizers library, with `encode(text).ids` and `decode(ids)`. Padding and truncation
    that tokenizer.json asks for are switched off: one text keeps its own tokens.
    """
    from tokenizers import Tokenizer

    if isinstance(source, Model):
        where, content = f"this {type(source).__name__}", source.extra_files.get(TOKENIZER)
    else:
        path = resolve(source)
        if path.suffix == ".bin":
            return Tokenizer.from_str(read_llama2c_tokenizer(path))
        path = path / TOKENIZER if path.is_dir() else path
        where, content = str(path.parent), read_limited(path, MAX_EXTRA_BYTES) if path.is_file() else None
    if content is None:
        raise ValueError(f"{where} has no {TOKENIZER}; its tokens are numbers only")
    with panics_as_errors(TOKENIZER):
        try:
            tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"the {TOKENIZER} of {where} cannot be read: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def resolve(source: str | Path) -> Path:
    """The checkpoint folder or llama2.c file that `load` reads for a path, a run folder, a hub id or a bundled name.

    A run folder stands for its trained model. HF_HOME says where files from the hub are kept; with HF_HUB_OFFLINE=1
    only files that are already there are used.
    """
    if bundled.is_name(source):
        return bundled.folder(os.fspath(source))
    path = Path(source).expanduser()
    if path.exists():
        return _find_run_model(path)
    if len(path.parts) > 1 and any(path.parent.glob(f"*/{RECIPE_FILE}")):  # among runs: a typing mistake
        raise ValueError(f"there is no run {path}; `qkv runs {path.parent}` lists the runs")
    name = os.fspath(source)
    if isinstance(source, Path) or not HUB_ID.fullmatch(name) or name.endswith((".bin", ".safetensors", ".json")):
        raise ValueError(
            f"there is nothing at {source}; expected a model folder, a run folder, a llama2.c file or a hub id"
        )
    if bundled.PREFIX + name in bundled.names():
        raise ValueError(f"there is no folder {name}; the bundled model is called {bundled.PREFIX}{name}")
    return _fetch_from_hub(name)


def _find_run_model(path: Path) -> Path:
    """The trained model of a run folder; any other path as it is."""
    if (path / CONFIG).is_file():
        return path
    if (path / MODEL_FOLDER / CONFIG).is_file():
        return path / MODEL_FOLDER
    if (path / RECIPE_FILE).is_file():
        if error := _run_error(path):
            raise ValueError(f"the run {path} failed, so it has no model: {error}")
        raise ValueError(f"the run {path} is not finished, so it has no model yet; resume it: {resume_command(path)}")
    return path


def _run_error(run: Path) -> str:
    """What ended a run that failed; "" for others."""
    try:
        return str(read_json(run / "run.json", "a run directory has a run.json").get("error", ""))
    except (ValueError, OSError):
        return ""


def resume_command(run: str | Path) -> str:
    """The command that resumes a run, whatever options started it."""
    return f"qkv train --config {Path(run) / RECIPE_FILE} --folder {run}"


def _fetch_from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"there is no folder {name}; to fetch it from the hub, install huggingface_hub: pip install 'qkv[hf]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # whatever the network and the hub can raise
        if _is_network_failure(error):
            raise ValueError(
                f"there is no folder {name}, and the Hugging Face hub could not be reached to fetch it: check the "
                f"network, or give a local folder; bundled models start with {bundled.PREFIX}"
            ) from error
        first = (str(error).strip().splitlines() or [""])[0]  # the hub's messages are a paragraph long
        reason = first.split(". ")[0].rstrip(".").removeprefix("Got: ")[:200] or type(error).__name__
        raise ValueError(
            f"there is no folder {name}, and it could not be fetched from the hub: {reason}; bundled models start with "
            f"{bundled.PREFIX}"
        ) from error


def _is_network_failure(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that there is no connection; by name, as libraries differ."""
    while error is not None:
        if type(error).__name__ in NETWORK_ERRORS:
            return True
        error = error.__cause__ or error.__context__
    return False
