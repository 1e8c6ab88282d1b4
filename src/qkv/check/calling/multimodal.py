"""Models on text with an image, a recording or a video: checked as functions of the text, with the other input given.

Placeholder tokens for the other input come first. How many there must be is read off the model's own error message.

Axes: b batch · t tokens · n placeholders.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.forms import CallForm, find_vocab_size
from qkv.check.calling.guard import call_target
from qkv.check.calling.media import MEDIA, Medium
from qkv.check.calling.names import IMAGES, SPECTROGRAMS, VIDEOS, WAVES, Parameters, parameters_of
from qkv.check.calling.outputs import find_rows, find_tensor
from qkv.check.report import describe_error

# fields of configs with the token that stands for a part of an image or of a recording
PLACEHOLDERS = {
    "image": ("image_token_id", "image_token_index", "media_token_id", "media_placeholder_token_id", "img_token_id"),
    "video": ("video_token_id", "video_token_index"),
    "spectrogram": ("audio_token_id", "audio_token_index", "audio_token"),
    "wave": ("audio_token_id", "audio_token_index"),
}
OTHER_INPUTS = (("image", IMAGES), ("spectrogram", SPECTROGRAMS), ("wave", WAVES), ("video", VIDEOS))
COUNTS = (0, 1, 16, 4, 17, 8, 64, 2)  # of placeholders, tried if no error says


@dataclass(frozen=True)
class OtherInput:
    """The input besides the text.

    Args:
        named: from the pieces of a medium (b, n, c) to keyword arguments.
    """

    kind: str
    words: str
    medium: Medium
    named: Callable[[Tensor], dict[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class ConditionedCall:
    """Calls a model on tokens (b, t) behind placeholders, with another input."""

    module: nn.Module
    tokens: str
    other: OtherInput
    placeholder: int
    count: int
    dtype: torch.dtype

    def __call__(self, x: Tensor, named: dict[str, Any], pieces: Tensor | None = None) -> Any:
        if pieces is None:
            pieces = self.other.medium.sample(1, self.dtype)
        pieces = pieces.expand(len(x), *pieces.shape[1:]) if len(pieces) == 1 else pieces
        front = torch.full((len(x), self.count), self.placeholder)
        named = dict(named)
        for mask in ("attention_mask", "decoder_attention_mask"):
            if isinstance(named.get(mask), Tensor) and self.count:
                named[mask] = torch.cat((torch.ones_like(front), named[mask]), 1)
        if "mm_token_type_ids" in parameters_of(self.module):  # 1 for an image
            named["mm_token_type_ids"] = torch.cat((torch.ones_like(front), torch.zeros_like(x)), 1)
        if "qformer_input_ids" in parameters_of(self.module):  # the instruction, read beside the image
            named["qformer_input_ids"] = x
        given = {self.tokens: torch.cat((front, x), 1), **self.other.named(pieces), **named}
        result = call_target(self.module, **given)
        length = self.count + x.shape[1]
        out = find_tensor(result, lambda part: part.ndim == 3 and tuple(part.shape[:2]) == (len(x), length))
        if out is None:
            out = find_tensor(result, lambda part: part.ndim == 3 and len(part) == len(x) and part.shape[1] > length)
        return result if out is None else out[:, -x.shape[1] :]

    def takes_name(self, name: str) -> bool:
        """Whether a parameter is about the tokens: attention_mask beside decoder_input_ids is not."""
        return self.tokens != "decoder_input_ids" or name != "attention_mask"


def conditioned_form(
    module: nn.Module, parameters: Parameters, dtype: torch.dtype, tried: dict[str, str], *, separate: bool = False
) -> tuple[CallForm, ConditionedCall] | None:
    """The form of a model on tokens with another input that matters, or None.

    separate: the outputs of the text do not depend on the other input.
    """
    both = getattr(getattr(module, "config", None), "is_encoder_decoder", False) or "input_ids" not in parameters
    order = ("decoder_input_ids", "input_ids") if both else ("input_ids",)
    tokens = next((known for known in order if known in parameters), None)
    size = find_vocab_size(module)
    if tokens is None or size is None:
        return None
    size = _first_special_token(module, size)
    for kind, names in OTHER_INPUTS:
        parameter = next((known for known in names if known in parameters), None)
        if parameter is None:
            continue
        for other in itertools.islice(_other_inputs(module, kind, parameter, parameters), 60):
            placeholder = _placeholder(module, kind, size)
            count = _count_placeholders(module, tokens, other, placeholder, size, dtype, tried)
            if count is None:
                continue
            call = ConditionedCall(module, tokens, other, placeholder, count, dtype)
            if separate or _matters(call, size):
                said = f" behind {count} placeholders" if count else ""
                return CallForm(f"tokens (b, t) as {tokens}{said}, with {other.words}", "tokens", size, call), call
            tried.setdefault(other.words, "it changes no output")
    return None


def _placeholder(module: nn.Module, kind: str, size: int) -> int:
    config = getattr(module, "config", None)
    for name in PLACEHOLDERS.get(kind, ()):
        if isinstance(token := getattr(config, name, None), int) and token >= 0:
            return token
    return 1


def _first_special_token(module: nn.Module, size: int) -> int:
    """The size of the vocabulary without the special tokens at its end."""
    config = getattr(module, "config", None)
    known = [value for name, value in vars(config).items() if name.endswith(("_token_id", "_token_index"))]
    return min([value for value in known if isinstance(value, int) and size // 2 < value < size], default=size)


def _count_placeholders(
    module: nn.Module,
    tokens: str,
    other: OtherInput,
    placeholder: int,
    size: int,
    dtype: torch.dtype,
    tried: dict[str, str],
) -> int | None:
    """The number of placeholders with which a call works; None if none does."""
    counts = list(COUNTS)
    x = torch.arange(3, 9).expand(2, 6) % size
    x = torch.where(x == placeholder, 2, x)
    for count in counts:
        if len(counts) > 24:
            return None
        try:
            ConditionedCall(module, tokens, other, placeholder, count, dtype)(x, {})
            return count
        except Exception as error:
            text = describe_error(error)
            tried.setdefault(f"{other.words}, {count} placeholders", text)
            if any(word in text for word in ("to unpack", "image size", "expected input", "Expected")):
                return None
            numbers = [int(number) for number in re.findall(r"\d+", text)]
            for number in numbers:
                counts += [n for n in (number, number // 2) if n not in counts and 0 < n < 400]
    return None


def _matters(call: ConditionedCall, size: int) -> bool:
    """Whether another image or recording changes the outputs."""
    x = torch.arange(3, 9).expand(2, 6) % size
    pieces = call.other.medium.sample(2, call.dtype)
    outs = [find_rows(call(x, {}, other), 2) for other in (pieces, pieces.flip(1, 2) * 0.5 + 0.3)]
    return all(out is not None for out in outs) and bool(((outs[0] - outs[1]).abs() > 0).any())  # type: ignore[operator]


def _other_inputs(module: nn.Module, kind: str, parameter: str, parameters: Parameters) -> Iterator[OtherInput]:
    """Ways to pass the other input, likely ones first."""
    if kind == "image" and "image_grid_thw" in parameters:
        yield from _patches(module, parameter)
    for medium in MEDIA[kind](module):

        def plain(pieces: Tensor, medium: Medium = medium) -> dict[str, Any]:
            return {parameter: medium.join(pieces)} | _masks(parameters, parameter, medium.join(pieces))

        if kind != "image":
            yield OtherInput(kind, medium.words, medium, plain)
            continue
        side = _side(medium)
        sizes = lambda pieces, side=side: torch.tensor([[side, side]] * len(pieces))  # noqa: E731

        def image(
            pieces: Tensor, axes: int, with_sizes: bool, medium: Medium = medium, sizes: Any = sizes
        ) -> dict[str, Any]:
            pixels = medium.join(pieces)
            for _ in range(axes):
                pixels = pixels[:, None]
            given = {parameter: pixels, **({"image_sizes": sizes(pieces)} if with_sizes else {})}
            return given | _image_extras(parameters, pixels)

        for axes, with_sizes in itertools.product((0, 1, 2), (False, True)):
            if with_sizes and "image_sizes" not in parameters:
                continue
            said = f"{f' and {axes} more axes' if axes else ''}{', image_sizes' if with_sizes else ''}"
            yield OtherInput(
                kind, f"{medium.words}{said}", medium,
                lambda pieces, axes=axes, with_sizes=with_sizes, image=image: image(pieces, axes, with_sizes),
            )  # fmt: skip


def _side(medium: Medium) -> int:
    return medium.join(torch.zeros(1, medium.pieces, medium.size)).shape[-1]


def _image_extras(parameters: Parameters, pixels: Tensor) -> dict[str, Any]:
    """Other arguments that some models take beside images, all in one piece and fully visible."""
    batch = len(pixels)
    more: dict[str, Any] = {}
    if "aspect_ratio_ids" in parameters:
        more["aspect_ratio_ids"] = torch.ones(batch, 1, dtype=torch.long)
    if "aspect_ratio_mask" in parameters:
        more["aspect_ratio_mask"] = torch.ones(batch, 1, pixels.shape[2] if pixels.ndim > 5 else 1, dtype=torch.long)
    return more


def _masks(parameters: Parameters, parameter: str, x: Tensor) -> dict[str, Any]:
    """A mask beside a recording, all True."""
    if "input_features_mask" in parameters:
        frames = x.shape[-1] if x.shape[-1] > x.shape[1] else x.shape[1]
        return {"input_features_mask": torch.ones(len(x), frames, dtype=torch.bool)}
    return {}


def _patches(module: nn.Module, parameter: str) -> Iterator[OtherInput]:
    """Images as rows of flattened patches with a grid of (time, height, width), as in Qwen-VL."""
    vision = getattr(getattr(module, "config", None), "vision_config", None)
    patch, channels = getattr(vision, "patch_size", 8), getattr(vision, "in_channels", None) or 3
    merge, time = getattr(vision, "spatial_merge_size", 2), getattr(vision, "temporal_patch_size", 1)
    if not all(isinstance(n, int) for n in (patch, channels, merge, time)):
        return
    side = 2 * merge
    for frames in dict.fromkeys((time, 1)):
        size = channels * frames * patch * patch
        medium = Medium(f"an image of {side} × {side} patches", side * side, size, lambda x: x.flatten(0, 1))

        def named(pieces: Tensor, side: int = side) -> dict[str, Any]:
            return {parameter: pieces.flatten(0, 1), "image_grid_thw": torch.tensor([[1, side, side]] * len(pieces))}

        yield OtherInput("image", f"{medium.words} (b·n, {size}) with image_grid_thw", medium, named)
