"""RoPE's settings as Hugging Face's config.json holds them: `rope_parameters`, or `rope_theta` and `rope_scaling`."""

import math
from typing import Any

from qkv.checkpoints.switches import Switches
from qkv.nn.rope import Linear, Llama3, Rope, Scaling, Yarn


def read_rope(switches: Switches, length: int) -> Rope:
    """The rotation that the settings describe; newer files hold it in one place, older ones in two."""
    base = switches.number("rope_theta", 10000.0)
    old, new = switches.look("rope_scaling"), switches.look("rope_parameters")
    for name, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{switches.where}: {name} should be an object; got {value!r}")
    if old is not None and new is not None:
        raise ValueError(f"{switches.where} holds rope_scaling and rope_parameters; remove the one that is out of date")
    settings = Switches(new or old or {}, f"{switches.where}: {'rope_scaling' if old else 'rope_parameters'}")
    base = settings.number("rope_theta", base)
    if (before := switches.maybe_count("original_max_position_embeddings")) is not None:
        settings.only("original_max_position_embeddings", before)
        length = before
    partial = switches.number("partial_rotary_factor", 1.0)
    if settings.number("partial_rotary_factor", partial) != 1.0:
        raise ValueError(f"{switches.where}: partial_rotary_factor has no equal in a Llama of qkv; only 1.0 has")
    settings.skip(("rope_type", "type"))
    kind = settings.look("rope_type") or settings.look("type") or "default"
    scaling = _scaling(kind, settings, length)
    settings.finish()
    return Rope(base=base, pairing="halves", scaling=scaling)


def write_rope(rope: Rope) -> dict[str, Any]:
    """The settings that describe a rotation."""
    scaling = rope.scaling
    settings: dict[str, Any] = {"rope_theta": rope.base}
    if scaling is None or type(scaling) is Scaling:
        return {"rope_type": "default", **settings}
    if isinstance(scaling, Linear):
        return {"rope_type": "linear", **settings, "factor": scaling.factor}
    if isinstance(scaling, Llama3):
        return {
            "rope_type": "llama3",
            **settings,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original_max_length,
        }
    if isinstance(scaling, Yarn):
        return {
            "rope_type": "yarn",
            **settings,
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_length,
            "beta_fast": scaling.fast,
            "beta_slow": scaling.slow,
            "attention_factor": scaling.amplitude,
            "truncate": scaling.truncate,
        }
    raise ValueError(
        f"position={rope!r}: {type(scaling).__name__} has no equal in Llama, which has linear, llama3, yarn"
    )


def _scaling(kind: Any, settings: Switches, length: int) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return Linear(factor=settings.number("factor"))
    if kind == "dynamic":  # with a factor of 1 the base never grows
        settings.only("factor", 1, 1.0)
        return None
    if kind == "llama3":
        return Llama3(
            factor=settings.number("factor"),
            low=settings.number("low_freq_factor"),
            high=settings.number("high_freq_factor"),
            original_max_length=settings.count("original_max_position_embeddings", length),
        )
    if kind == "yarn":
        original = settings.count("original_max_position_embeddings", length)
        factor = settings.number("factor")
        return Yarn(
            factor=factor,
            original_max_length=original,
            fast=settings.number("beta_fast", 32.0),
            slow=settings.number("beta_slow", 1.0),
            attention=_sharpening(settings, factor),
            truncate=settings.flag("truncate", True),
        )
    raise ValueError(
        f"{settings.where}: rope_type={kind!r} has no equal in qkv; known are default, linear, llama3, yarn"
    )


def _sharpening(settings: Switches, factor: float) -> float | None:
    """YaRN's attention factor: given, or the quotient of two logarithms, or (None) the paper's."""
    given = settings.look("attention_factor")
    above, below = settings.look("mscale"), settings.look("mscale_all_dim")
    if given is not None:
        return settings.number("attention_factor")
    if not above or not below or factor <= 1:
        return None
    above, below = settings.number("mscale"), settings.number("mscale_all_dim")
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)
