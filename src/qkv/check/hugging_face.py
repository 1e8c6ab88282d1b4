"""Architectures of Hugging Face transformers, built small with random weights; nothing is downloaded."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field, fields, replace
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


@dataclass(frozen=True)
class Design:
    """Promises that a design changes, with the reason; why its gradient is another than its output's, if it is."""

    promises: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    gradient: str | None = None


def _no_padding(why: str, gradient: str | None = None) -> Design:
    return Design({"padding": False}, why, gradient)


DESIGNS: dict[str, Design] = {
    "cpmant": Design(
        {"kind": None, "padding": False}, "its input is all context; attention_mask is documented as a dummy"
    ),
    "xlnet": Design({"kind": None}, "the order is a permutation that is handed in; without one it sees everything"),
    "rwkv": _no_padding("a recurrence reads padding like everything else"),
    "recurrent_gemma": _no_padding("a recurrence reads padding like everything else"),
    "convbert": _no_padding("a convolution mixes neighbours, padding among them"),
    "funnel": _no_padding("neighbours are pooled, padding among them"),
    "nystromformer": _no_padding("landmarks are means over all places, padding among them"),
    "yoso": _no_padding("an approximation with a convolution", "hashes have an approximate gradient of their own"),
    "mobilebert": _no_padding("the embeddings of neighbours are joined, padding among them"),
    "deepseek_v4": _no_padding("runs of tokens are compressed into one key, padding among them"),
    "hrm_text": Design(gradient="only the last cycle is differentiated"),
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
    "mask_token", "seq_relationship", "_global", "entity", "pronunciation_embed", "shape_embed", "eoi_embedding",
    "mask_emb", "seg_embed", "r_s_bias", "cross_attention", "crossattention", "encoder_attn", "cross_attn",
)  # fmt: skip


def subject(name: str, contract: Contract, arguments: dict[str, Any] | None = None) -> Subject:
    """An architecture as a subject, in float32: many compute norms and angles in it whatever their weights are."""
    found = module_subject(build(name, arguments), f"hf:{name}", contract, (torch.float32,))
    design = designed(name)
    how = f"{found.how}, built small with random weights{f'; by design {design.why}' if design.why else ''}"
    return replace(found, how=how, spare=(*SPARE, *_uncalled(found)), inexact=design.gradient)


def _uncalled(found: Subject) -> tuple[str, ...]:
    """Parts that were not called, of a model that reads other inputs too: towers for pictures and sounds."""
    assert found.module is not None
    names = inspect.signature(found.module.forward).parameters
    if not any(word in name for name in names for word in OTHERS):
        return ()
    called: set[nn.Module] = set()
    hooks = [part.register_forward_pre_hook(lambda part, _: called.add(part)) for part in found.module.modules()]
    with torch.no_grad():
        found.run(found.draw(2, found.length, torch.Generator().manual_seed(3)))
    for hook in hooks:
        hook.remove()
    return tuple(f"{name.lower()}." for name, part in found.module.named_modules() if name and part not in called)


OTHERS = ("pixel_values", "input_features", "input_values", "audio", "entity", "image", "video", "speech")


def build(name: str, arguments: dict[str, Any] | None = None) -> nn.Module:
    """A small instance with random weights, of the eager path; `arguments` are fields of its config."""
    transformers = library()
    kind = getattr(transformers, name, None)
    if kind is None or getattr(kind, "config_class", None) is None:
        near = _near(name, list(architectures()))
        raise ValueError(f"transformers {transformers.__version__} has no architecture {name!r}{near}")
    asked = {"is_decoder": True, "causal": True} if architectures().get(name) == "causal" else {}
    config = small_config(kind.config_class, **asked | (arguments or {}))
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        if (size := _parameters(kind, config)) > LARGEST:
            raise ValueError(f"{name} has {size:,} parameters in its smallest known config, more than {LARGEST:,}")
        return kind(config)


def contract_of(name: str, said: Contract | None = None) -> Contract:
    """What an architecture's family promises, less what its design does not, and what is `said` besides."""
    name = name.removeprefix("hf:")
    family = architectures().get(name)
    causal = name.endswith(("ForCausalLM", "LMHeadModel"))
    contract = FAMILIES[family][1] if family is not None else Contract(kind="causal") if causal else Contract()
    contract = replace(contract, **designed(name).promises)
    more = {part.name: getattr(said, part.name) for part in fields(said)} if said is not None else {}
    return replace(contract, **{field: value for field, value in more.items() if value is not None})


def designed(name: str) -> Design:
    """What is particular to an architecture's design."""
    kind = getattr(library(), name, None)
    return DESIGNS.get(getattr(getattr(kind, "config_class", None), "model_type", ""), Design())


def _parameters(kind: Any, config: Any) -> int:
    """How many parameters it would have; nothing is allocated."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in kind(config).parameters())
    except Exception:  # some constructors compute with numbers, which the meta device has not
        return 0


def _near(name: str, names: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, names, n=3) or ("LlamaForCausalLM", "BertModel", "ViTModel")
    return f"; it has {', '.join(near)}, …"
