"""Architectures of Hugging Face transformers, built small with random weights; nothing is downloaded."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qkv.check.contract import Contract
from qkv.check.modules import module_subject
from qkv.check.small import small_config
from qkv.check.subject import Subject

LARGEST = 20_000_000  # parameters; what stays larger with every known size made small is not small

# family: the table of transformers that lists it, and what its members promise
FAMILIES = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", Contract(kind="causal")),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", Contract()),
    "encoder-decoder": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", Contract(kind="causal")),
    "encoder": ("MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES", Contract()),
    "image classifier": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", Contract()),
    "image encoder": ("MODEL_FOR_IMAGE_MAPPING_NAMES", Contract()),
}


def library() -> Any:
    """The transformers package, quiet."""
    try:
        import transformers
    except ImportError:
        raise ValueError("hf: targets need the transformers package: pip install transformers") from None
    transformers.logging.set_verbosity_error()
    return transformers


def architectures() -> dict[str, str]:
    """Every architecture of the installed transformers that is a model of text or of images, with its family."""
    library()
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for family, (table, _) in FAMILIES.items():
        for names in getattr(modeling_auto, table, {}).values():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, family)
    return found


# words in the names of parameters that text alone, or the output that is judged, does not use by design: towers and
# projections of other inputs, poolers, heads of other losses, and indexers, which choose keys by a ranking (it has no
# gradient; they are trained by a loss of their own)
SPARE = (
    "pooler", "indexer", "vision", "visual", "image", "audio", "speech", "video", "multi_modal", "multimodal", "mm_",
    "patch_embed", "embed_positions_img", "talker", "mtp", "nextn", "qformer", "perceiver", "projector", "connector",
    "mask_token", "seq_relationship", "cross_attention", "crossattention", "encoder_attn", "cross_attn",
)  # fmt: skip


def subject(name: str, contract: Contract, arguments: dict[str, Any] | None = None) -> Subject:
    """An architecture as a subject; in float32, since many compute norms and angles in it whatever their weights are."""
    found = module_subject(build(name, arguments), f"hf:{name}", contract, (torch.float32,))
    return replace(found, how=f"{found.how}, built small with random weights", spare=SPARE)


def build(name: str, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A small instance with random weights, of the eager path; `arguments` are fields of its config."""
    transformers = library()
    kind = getattr(transformers, name, None)
    if kind is None or getattr(kind, "config_class", None) is None:
        near = _near(name, list(architectures()))
        raise ValueError(f"transformers {transformers.__version__} has no architecture {name!r}{near}")
    asked = {"is_decoder": True} if architectures().get(name) == "causal" else {}
    config = small_config(kind.config_class, **asked | (arguments or {}))
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        if (size := _parameters(kind, config)) > LARGEST:
            raise ValueError(f"{name} has {size:,} parameters in its smallest known config, more than {LARGEST:,}")
        return kind(config)


def contract_of(name: str) -> Contract:
    """What an architecture's family promises."""
    name = name.removeprefix("hf:")
    family = architectures().get(name)
    if family is not None:
        return FAMILIES[family][1]
    return Contract(kind="causal") if name.endswith(("ForCausalLM", "LMHeadModel")) else Contract()


def _parameters(kind: Any, config: Any) -> int:
    """How many parameters it would have; nothing is allocated."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in kind(config).parameters())
    except Exception:  # some constructors compute with numbers, which the meta device has not
        return 0


def _near(name: str, names: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=3)
    return f"; it has {', '.join(near)}" if near else ""
