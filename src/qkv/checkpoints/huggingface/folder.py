"""Read and write Hugging Face folders: config.json names the family, whose table maps the safetensors to our tensors.

Pickles are never read.
"""

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn

from qkv._files import atomic_folder, read_json, read_limited, write_json
from qkv.checkpoints.huggingface.bart import BART
from qkv.checkpoints.huggingface.bert import BERT
from qkv.checkpoints.huggingface.config_reader import ConfigReader
from qkv.checkpoints.huggingface.distilbert import DISTILBERT
from qkv.checkpoints.huggingface.family import Family, TensorPair, match_tensors
from qkv.checkpoints.huggingface.gpt2 import GPT2
from qkv.checkpoints.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from qkv.checkpoints.huggingface.opt import OPT
from qkv.checkpoints.huggingface.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qkv.checkpoints.huggingface.vit import VIT
from qkv.models import Model
from qkv.models.folder import (
    CONFIG,
    EXPECTED,
    EXTRA_FILES,
    WEIGHTS,
    build_empty,
    check_layers,
    get_untied_state,
    read_config,
    read_extra_files,
    read_tensors,
    write_extra_files,
    write_tensors,
)

FAMILIES = {
    family.name: family
    for family in (
        *(GPT2, OPT),
        *(LLAMA, MISTRAL, QWEN2, QWEN3),
        *(BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT),
        VIT,
        BART,
    )
}
WEIGHTS_INDEX = "model.safetensors.index.json"
HF_CONFIG, LEFT_OUT = "huggingface.json", "left_out.safetensors"
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def load_hf(source: str | Path) -> Model:
    """Load a Hugging Face folder; the model is in eval mode and in the file's precision."""
    source = Path(source)
    family, model, found = _read_folder(source)
    tensors, left_out = _select_tensors(family, model.config, found, str(source))
    _fill(model, _convert_tensors(family, model, tensors, str(source)))
    model.extra_files = _without_hf_files(read_extra_files(source))
    model.extra_files[HF_CONFIG] = read_limited(source / CONFIG)
    if left_out:
        model.extra_files[LEFT_OUT] = tensors_to_bytes(left_out)
    return model.eval()


def save_hf(model: Model, target: str | Path) -> None:
    """Write a folder that Hugging Face's from_pretrained loads; it appears whole or not at all.

    A model that was loaded from such a folder gets its config.json, its tokenizer and its left-out tensors back. A
    model that Hugging Face cannot express raises a ValueError that names the field.
    """
    family, config = _describe_for_hf(model)
    state = get_untied_state(model)
    found = {pair.theirs: pair.transform.write([state[name] for name in pair.ours]) for pair in _pairs(family, model)}
    family.add_missing(found)
    if config["architectures"][0] in family.headless:
        head = [name for name in found if not name.startswith(family.prefix)]
        if any(bool(found[name].any()) for name in head):
            config["architectures"] = [family.architectures[0]]  # the headless class has no place for them
        else:
            found = {name.removeprefix(family.prefix): tensor for name, tensor in found.items() if name not in head}
    found |= left_out_tensors(model)
    config["dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
    with atomic_folder(target, (CONFIG, WEIGHTS, *EXTRA_FILES)) as scratch:
        write_tensors(scratch / WEIGHTS, found, {"format": "pt"})
        write_json(scratch / CONFIG, config)
        write_extra_files(_without_hf_files(model.extra_files), scratch)


def left_out_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of the Hugging Face folder that are not part of our model (a pooler, a head), by their name there."""
    try:
        return tensors_from_bytes(model.extra_files[LEFT_OUT]) if LEFT_OUT in model.extra_files else {}
    except SafetensorError as error:
        raise ValueError(f"{LEFT_OUT} is damaged: {error}") from None


def _without_hf_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in (HF_CONFIG, LEFT_OUT)}


def read_weights(source: Path) -> dict[str, Tensor]:
    """All tensors of a folder by name: from one safetensors file, or from shards with an index."""
    if (source / WEIGHTS).is_file():
        return read_tensors(source / WEIGHTS)
    if (source / WEIGHTS_INDEX).is_file():
        return _read_shards(source)
    raise ValueError(missing_weights_message(source))


def _read_shards(source: Path) -> dict[str, Tensor]:
    index = source / WEIGHTS_INDEX
    files = read_json(index, EXPECTED).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ValueError(f"{index} should hold a weight_map from tensors to files")
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        if file != Path(file).name or "\\" in file or not file.endswith(".safetensors"):
            raise ValueError(f"{index} names the file {file!r}; only safetensors files of the folder itself are read")
        if not (source / file).is_file():
            raise ValueError(f"{index} names {file}, which the folder lacks: it is incomplete")
        shard = read_tensors(source / file)
        if misplaced := sorted(name for name in shard if files.get(name) != file):
            raise ValueError(f"{source / file} holds {misplaced[0]}, which {WEIGHTS_INDEX} does not place there")
        tensors.update(shard)
    if missing := sorted(set(files) - set(tensors)):
        raise ValueError(f"{source / files[missing[0]]} lacks {missing[0]}, which {WEIGHTS_INDEX} places there")
    return tensors


def missing_weights_message(source: Path) -> str:
    """Why a folder without safetensors cannot be read."""
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in source.glob(pattern))
    if pickles:
        return (
            f"{source} holds {pickles[0]}, a pickle, which could run any code when read; only safetensors is read: "
            f"write it with transformers' save_pretrained"
        )
    return f"{source} has no {WEIGHTS} and no {WEIGHTS_INDEX}"


def _read_folder(source: Path) -> tuple[Family, Model, dict[str, Tensor]]:
    """The family of a folder, an empty model of its config, and its tensors."""
    config_path = str(source / CONFIG)
    plain = read_config(source)
    family, reader = _find_family(plain, config_path), ConfigReader(plain, config_path)
    try:
        config = family.read_config(reader)
        reader.check_all_read()
        tensors = read_weights(source)
        check_layers(config, len(tensors), config_path)
        return family, build_empty(family.model, config, config_path), tensors
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # torch's own errors for absurd sizes
        message = str(error)
        if str(source) not in message:
            message = f"{config_path} describes no model: {message.splitlines()[0]}"
        raise ValueError(message) from None


def _find_family(config: dict[str, Any], where: str) -> Family:
    model_type, architectures = config.get("model_type"), config.get("architectures")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ValueError(f"{where} describes a model of type {model_type!r}; qkv reads {', '.join(FAMILIES)}")
    for name in architectures if isinstance(architectures, list) else []:
        if name not in family.architectures:
            known = ", ".join(name for family in FAMILIES.values() for name in family.architectures)
            raise ValueError(f"{where} describes the architecture {name!r}; qkv reads {known}")
    return family


def _describe_for_hf(model: Model) -> tuple[Family, dict[str, Any]]:
    """The family and config.json to write: the config.json it was loaded with, if that still describes the model."""
    if HF_CONFIG in model.extra_files:
        config = json.loads(model.extra_files[HF_CONFIG])
        family = _find_family(config, HF_CONFIG)
        if family.model is type(model) and family.read_config(ConfigReader(config, HF_CONFIG)) == model.config:
            config.pop("torch_dtype", None)
            return family, {**config, "architectures": config.get("architectures") or [family.architectures[0]]}
    reasons = []
    for family in FAMILIES.values():
        if family.model is type(model) and family.write_config is not None:
            try:
                config = family.write_config(model.config)
            except ValueError as error:
                reasons.append(f"as {family.name}, {error}")
            else:
                return family, {"architectures": [family.architectures[0]], "model_type": family.name, **config}
    models = ", ".join(sorted({family.model.__name__ for family in FAMILIES.values()}))
    reasons.sort(key=lambda text: "position=" in text)  # a family with other positions is the farthest
    reason = reasons[0] if reasons else f"qkv writes {models}"
    error = ValueError(f"this {type(model).__name__} has no counterpart among Hugging Face's models: {reason}")
    for other in reasons[1:]:
        error.add_note(other)  # a traceback shows them
    raise error


def _pairs(family: Family, model: Model) -> list[TensorPair]:
    return match_tensors(family.table(model.config), get_untied_state(model))


def _select_tensors(
    family: Family, config: Any, tensors: dict[str, Tensor], where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors under the names of the family's table, and those that are not part of our model."""
    prefixed = any(name.startswith(family.prefix) for name in tensors)
    heads = tuple(rule.theirs for rule in family.table(config) if not rule.theirs.startswith(family.prefix))
    tied = getattr(config, "tie_embeddings", False)
    selected: dict[str, Tensor] = {}
    left_out: dict[str, Tensor] = {}
    for original, tensor in tensors.items():
        name = original
        for old, new in family.old_suffixes.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        name = name if prefixed or name.startswith(heads) else family.prefix + name
        stem = name.removeprefix(family.prefix)
        if _matches(stem, family.ignored):
            continue
        if _matches(stem, family.left_out) and not (tied and name in family.tied):
            left_out[original] = tensor
            continue
        if name in selected:
            raise ValueError(f"{where} holds {name} twice, once under an older name")
        selected[name] = tensor
    if tied:
        for name, others in family.tied.items():
            _merge_copies(selected, name, others, where)
    return selected, left_out


def _merge_copies(tensors: dict[str, Tensor], name: str, others: tuple[str, ...], where: str) -> None:
    """A tied table may be in the file under any of its names, or under several: then all copies must be equal."""
    for other in others:
        copy = tensors.pop(other, None)
        if copy is not None and not torch.equal(tensors.setdefault(name, copy), copy):
            raise ValueError(
                f"{where}: tie_word_embeddings is true, but {other} differs from {name}; set it to false to load both"
            )


def _convert_tensors(family: Family, model: Model, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Make our tensors from theirs; a missing or extra tensor or a wrong shape raises a ValueError that names it."""
    shapes = get_untied_state(model)
    pairs = _pairs(family, model)
    for pair in pairs:
        if pair.theirs in family.optional and pair.theirs not in tensors:
            zeros = pair.transform.write([torch.zeros(shapes[name].shape, device="cpu") for name in pair.ours])
            tensors[pair.theirs] = zeros.to(next(iter(tensors.values())).dtype) if tensors else zeros
    expected = {pair.theirs for pair in pairs}
    if missing := sorted(expected - set(tensors)):
        raise ValueError(f"{where} lacks {len(missing)} tensors that {CONFIG} asks for, first {missing[0]}")
    if extra := sorted(set(tensors) - expected):
        raise ValueError(f"{where} has {len(extra)} tensors that {CONFIG} has no place for, first {extra[0]}")
    state: dict[str, Tensor] = {}
    for pair in pairs:
        theirs, shape = tensors[pair.theirs], pair.transform.write([shapes[name] for name in pair.ours]).shape
        if theirs.shape != shape:
            raise ValueError(f"{where}: {pair.theirs} should be {tuple(shape)}, got {tuple(theirs.shape)}")
        if theirs.dtype not in DTYPES:
            raise ValueError(f"{where}: {pair.theirs} is {theirs.dtype}; qkv reads float64, float32, bfloat16, float16")
        state.update(zip(pair.ours, pair.transform.read(theirs), strict=True))
    return state


def _fill(model: Model, state: dict[str, Tensor]) -> None:
    """Replace a model's empty tensors by copies in the widest precision among them; tied tensors stay tied.

    Copies, because the file behind a memory-mapped tensor may change.
    """
    dtype = reduce(torch.promote_types, {tensor.dtype for tensor in state.values()})
    parameters = {
        name: nn.Parameter(tensor.to(dtype, copy=True, memory_format=torch.contiguous_format))
        for name, tensor in state.items()
    }
    first = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    every = {name: parameters[first[id(tensor)]] for name, tensor in model.state_dict(keep_vars=True).items()}
    model.load_state_dict(every, assign=True)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
