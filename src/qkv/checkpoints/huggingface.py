"""Hugging Face folders in and out: config.json says which family, the family's table says which tensor is which."""

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from safetensors.torch import save_file
from torch import Tensor, nn

from qkv._folders import whole_folder
from qkv.checkpoints.bart import BART
from qkv.checkpoints.bert import BERT
from qkv.checkpoints.family import Family
from qkv.checkpoints.gpt2 import GPT2
from qkv.checkpoints.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from qkv.checkpoints.switches import Switches
from qkv.checkpoints.tables import Pair, pairs
from qkv.checkpoints.vit import VIT
from qkv.checkpoints.weights import read_weights
from qkv.models import Model
from qkv.models.folder import COMPANIONS, CONFIG, WEIGHTS, read_config, read_files, untied, write_files, write_json

FAMILIES = {family.name: family for family in (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, BERT, VIT, BART)}
THEIR_CONFIG, LEFT_OUT = "huggingface.json", "left_out.safetensors"


def load_hf(source: str | Path) -> Model:
    """The model in a Hugging Face folder, in eval mode and in the file's precision."""
    source = Path(source)
    family, model, found = _described_by(read_config(source), source)
    tensors, left = _sorted_out(family, model.config, found, str(source))
    state = _ours(family, model, tensors, str(source))
    _fill(model, state)
    model.files = {
        name: content for name, content in read_files(source).items() if name not in (THEIR_CONFIG, LEFT_OUT)
    }
    model.files[THEIR_CONFIG] = (source / CONFIG).read_bytes()
    if left:
        model.files[LEFT_OUT] = bytes_of(left)
    return model.eval()


def save_hf(model: Model, target: str | Path) -> None:
    """Write a folder that Hugging Face's from_pretrained loads, whole or not at all.

    A model that came from such a folder gets its config.json, its tokenizer and the tensors that were left out back.
    One that has no equal there is refused, by the field that makes the difference.
    """
    family, config = _described(model)
    state = untied(model)
    found = {pair.theirs: pair.how.write([state[name] for name in pair.ours]) for pair in _pairs(family, model)}
    family.complete(found)
    if config["architectures"][0] in family.bare:
        heads = [name for name in found if not name.startswith(family.prefix)]
        if any(bool(found[name].any()) for name in heads):
            config["architectures"] = [family.architectures[0]]  # the bare model has no place for them
        else:
            found = {name.removeprefix(family.prefix): tensor for name, tensor in found.items() if name not in heads}
    found |= left_out(model)
    config["dtype"] = str(next(iter(state.values())).dtype).removeprefix("torch.")
    files = {name: content for name, content in model.files.items() if name not in (THEIR_CONFIG, LEFT_OUT)}
    with whole_folder(target, (CONFIG, WEIGHTS, *COMPANIONS)) as scratch:
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, scratch / WEIGHTS, {"format": "pt"})
        write_json(config, scratch / CONFIG)
        write_files(files, scratch)


def left_out(model: Model) -> dict[str, Tensor]:
    """The tensors of the folder a model came from that are no part of it (a pooler, a head), by their name there."""
    try:
        return tensors_of(model.files[LEFT_OUT]) if LEFT_OUT in model.files else {}
    except SafetensorError as error:
        raise ValueError(f"{LEFT_OUT} is damaged: {error}") from None


def _described_by(plain: dict[str, Any], source: Path) -> tuple[Family, Model, dict[str, Tensor]]:
    """The family that a config.json belongs to, its model without numbers, and the tensors that lie beside it."""
    where = str(source / CONFIG)
    family, switches = _family_of(plain, where), Switches(plain, where)
    try:
        config = family.read(switches)
        switches.finish()
        tensors = read_weights(source)
        layers = max(getattr(config, name, 0) for name in ("layers", "encoder_layers", "decoder_layers"))
        if layers > len(tensors):
            raise ValueError(f"{where} asks for {layers} layers; there are {len(tensors)} tensors in all")
        with torch.device("meta"):  # names and shapes only; the numbers come from the file
            return family, family.model(config), tensors
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # torch's own refusals of absurd sizes
        said = str(error) if str(source) in str(error) else f"{where} describes no model: {str(error).splitlines()[0]}"
        raise ValueError(said) from None


def _family_of(plain: dict[str, Any], where: str) -> Family:
    kind, architectures = plain.get("model_type"), plain.get("architectures")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ValueError(f"{where} describes a model of type {kind!r}; qkv knows {', '.join(FAMILIES)}")
    for name in architectures if isinstance(architectures, list) else []:
        if name not in family.architectures:
            known = ", ".join(name for family in FAMILIES.values() for name in family.architectures)
            raise ValueError(f"{where} describes the architecture {name!r}; qkv knows {known}")
    return family


def _described(model: Model) -> tuple[Family, dict[str, Any]]:
    """The family that a model belongs to and its config.json: the one it came with if that still describes it."""
    if THEIR_CONFIG in model.files:
        plain = json.loads(model.files[THEIR_CONFIG])
        family = _family_of(plain, THEIR_CONFIG)
        if family.model is type(model) and family.read(Switches(plain, THEIR_CONFIG)) == model.config:
            plain.pop("torch_dtype", None)
            return family, {**plain, "architectures": plain.get("architectures") or [family.architectures[0]]}
    refusals = []
    for family in FAMILIES.values():
        if family.model is type(model):
            try:
                config = family.write(model.config)
            except ValueError as error:
                refusals.append(f"as {family.name}, {error}")
            else:
                return family, {"architectures": [family.architectures[0]], "model_type": family.name, **config}
    reasons = "; ".join(refusals) or f"known are {', '.join(sorted({f.model.__name__ for f in FAMILIES.values()}))}"
    raise ValueError(f"this {type(model).__name__} has no equal among Hugging Face's models: {reasons}")


def _pairs(family: Family, model: Model) -> list[Pair]:
    return pairs(family.table(model.config), untied(model))


def _sorted_out(
    family: Family, config: Any, tensors: dict[str, Tensor], where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors by the names that the table uses, and those that are no part of our model."""
    prefixed = any(name.startswith(family.prefix) for name in tensors)
    heads = tuple(row.theirs for row in family.table(config) if not row.theirs.startswith(family.prefix))
    tied = getattr(config, "tied", False)
    wanted: dict[str, Tensor] = {}
    left: dict[str, Tensor] = {}
    for original, tensor in tensors.items():
        name = original
        for ending, now in family.renamed.items():
            name = name.removesuffix(ending) + now if name.endswith(ending) else name
        name = name if prefixed or name.startswith(heads) else family.prefix + name
        stem = name.removeprefix(family.prefix)
        if _matches(stem, family.ignored):
            continue
        if _matches(stem, family.left_out) and not (tied and name in family.tied):
            left[original] = tensor
            continue
        if name in wanted:
            raise ValueError(f"{where} holds {name} twice, once under an older name")
        wanted[name] = tensor
    if tied:
        for name, others in family.tied.items():
            _join_copies(wanted, name, others, where)
    return wanted, left


def _join_copies(tensors: dict[str, Tensor], name: str, others: tuple[str, ...], where: str) -> None:
    """A shared table may stand in the file under any of its names, or under several: then all must be equal."""
    for other in others:
        copy = tensors.pop(other, None)
        if copy is not None and not torch.equal(tensors.setdefault(name, copy), copy):
            raise ValueError(
                f"{where}: tie_word_embeddings is true, but {other} differs from {name}; say false to load both"
            )


def _ours(family: Family, model: Model, tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Our tensors made from theirs; what is missing, extra or of another shape is refused by name."""
    shapes = untied(model)
    expected = _pairs(family, model)
    for pair in expected:
        if pair.theirs in family.optional and pair.theirs not in tensors:
            like = pair.how.write([torch.zeros(shapes[name].shape, device="cpu") for name in pair.ours])
            tensors[pair.theirs] = like.to(next(iter(tensors.values())).dtype) if tensors else like
    if missing := sorted({pair.theirs for pair in expected} - set(tensors)):
        raise ValueError(f"{where} lacks {len(missing)} tensors that {CONFIG} asks for, first {missing[0]}")
    if extra := sorted(set(tensors) - {pair.theirs for pair in expected}):
        raise ValueError(f"{where} has {len(extra)} tensors that {CONFIG} has no place for, first {extra[0]}")
    state: dict[str, Tensor] = {}
    for pair in expected:
        theirs, shape = tensors[pair.theirs], pair.how.write([shapes[name] for name in pair.ours]).shape
        if theirs.shape != shape:
            raise ValueError(f"{where}: {pair.theirs} should be {tuple(shape)}; got {tuple(theirs.shape)}")
        if theirs.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(
                f"{where}: {pair.theirs} is of {theirs.dtype}; qkv reads float64, float32, bfloat16, float16"
            )
        state.update(zip(pair.ours, pair.how.read(theirs), strict=True))
    return state


def _fill(model: Model, state: dict[str, Tensor]) -> None:
    """Put copies of tensors (a file may change under a mapped one) in the place of a model's empty ones, all in the
    widest precision among them; ties stay ties."""
    dtype = reduce(torch.promote_types, {tensor.dtype for tensor in state.values()})
    parameters = {name: nn.Parameter(_copied(tensor, dtype)) for name, tensor in state.items()}
    first = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    every = {name: parameters[first[id(tensor)]] for name, tensor in model.state_dict(keep_vars=True).items()}
    model.load_state_dict(every, assign=True)


def _copied(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
