"""Models on images, video and audio as functions of a sequence of pieces, so that the influence map is measured as for
tokens: an image is a sequence of tiles, a video of frames, a waveform or a spectrogram of stretches of time.

Axes: b batch · n pieces · c the numbers of one piece.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.forms import fill_required, first_channels
from qkv.check.calling.guard import call_target
from qkv.check.calling.names import (
    IMAGES,
    SPECTROGRAMS,
    TARGETS,
    TOKENS,
    VIDEOS,
    WAVES,
    Fill,
    Parameters,
    parameters_of,
    passes_by_position,
    required_names,
)
from qkv.check.calling.outputs import differentiable_outputs, find_rows
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import describe_error

GRID = 4  # tiles per side of an image
STRETCHES = 8  # of a waveform or a spectrogram


@dataclass(frozen=True)
class Medium:
    """An input that is no sequence, cut into pieces.

    Args:
        pieces: how many.
        size: the numbers of one piece.
        join: from pieces (b, n, c) to the input.
    """

    words: str
    pieces: int
    size: int
    join: Callable[[Tensor], Tensor]

    def sample(self, batch: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.randn(batch, self.pieces, self.size, generator=generator, dtype=dtype)


def media_implementation(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Implementation | None:
    """A model on images, video or audio as an implementation, or None if it is not one."""
    parameters = parameters_of(module)
    kind, parameter = find_medium(module, parameters)
    if kind is None:
        return None
    kinds = (kind, "video") if kind == "image" else (kind,)  # pixel_values may be a video
    media = itertools.chain.from_iterable(MEDIA[one](module) for one in kinds)
    return try_media(module, name, parameters, parameter, media, dtype, tried)


def try_media(
    module: nn.Module,
    name: str,
    parameters: Parameters,
    parameter: str,
    media: Iterator[Medium],
    dtype: torch.dtype,
    tried: dict[str, str],
) -> Implementation | None:
    """The first input that the model takes."""
    for medium in media:
        for words, filled in fill_required(parameters, [parameter], module):
            call = MediumCall(module, parameter, passes_by_position(parameters, parameter), filled, medium)
            said = f"{medium.words}{words}"
            try:
                with torch.no_grad():
                    out = find_rows(call(medium.sample(2, dtype)), 2)
            except Exception as error:
                tried.setdefault(said, describe_error(error))
                continue
            if out is not None:
                return _make_implementation(call, name, said, dtype)
            tried.setdefault(said, "no output with a row for each input")
    return None


def find_medium(module: nn.Module, parameters: Parameters) -> tuple[str | None, str]:
    """What the model reads besides text, and the parameter: by its name, or by the convolution that comes first."""
    required = required_names(parameters)
    for kind, names in (("image", IMAGES), ("video", VIDEOS), ("wave", WAVES), ("spectrogram", SPECTROGRAMS)):
        named = next((known for known in names if known in parameters), None)
        if named is not None and (named in required or len(required) == 0):
            return kind, named
    first = next((part for part in module.modules() if isinstance(part, FIRST_LAYERS)), None)
    main = next(iter(required or parameters), "")
    kinds = {nn.Conv2d: "image", nn.Conv3d: "video"}
    kind = next((kind for layer, kind in kinds.items() if isinstance(first, layer)), None)
    if kind == "image" and first is not None and first_channels(module) is not None and _reads_features(module, first):
        kind = None
    if kind is None and isinstance(first, nn.Conv1d):
        kind = "wave" if first.in_channels == 1 else "spectrogram" if first.kernel_size != (1,) else None
    return kind, main


def _reads_features(module: nn.Module, first: nn.Module) -> bool:
    """Whether it reads maps of features, not images: a convolution of single positions comes first, but for a norm."""
    leaves = [part for part in module.modules() if not list(part.children()) and list(part.parameters(recurse=False))]
    many = getattr(first, "in_channels", 0) > 4 or isinstance(leaves[0], nn.GroupNorm | nn.BatchNorm2d)
    return many and getattr(first, "kernel_size", ()) == (1, 1)


FIRST_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.Linear, nn.LayerNorm)


@dataclass(frozen=True)
class MediumCall:
    """Calls a model on pieces (b, n, c)."""

    module: nn.Module
    parameter: str
    by_position: bool
    filled: Fill
    medium: Medium

    def __call__(self, pieces: Tensor) -> Any:
        x = self.medium.join(pieces)
        more = {key: value(x) for key, value in self.filled.items()}
        if "noise" in parameters_of(self.module):  # a masked autoencoder hides patches by noise: always the same ones
            more["noise"] = _fixed_noise(self.module, len(x))
        if self.by_position:
            return call_target(self.module, x, **more)
        return call_target(self.module, **{self.parameter: x}, **more)


def _make_implementation(call: MediumCall, name: str, words: str, dtype: torch.dtype) -> Implementation:
    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        out = find_rows(call(x), x.shape[0])
        if out is None:
            raise ValueError(f"{name} gave no output with a row for each input")
        return out

    return Implementation(
        name=name,
        level="model",
        how=f"{name}: {words}",
        run=run,
        dim=call.medium.size,
        length=call.medium.pieces,
        fixed_length=call.medium.pieces,
        dtype=dtype,
        module=call.module,
        aligned=False,
        all_outputs=lambda x: differentiable_outputs(call(x)),
    )


# -- media with text ---------------------------------------------------------------------------------------------------


class WithMedium(nn.Module):
    """A model of a medium and of tokens (speech recognition, captions) as one of tokens, with a fixed medium."""

    def __init__(self, module: nn.Module, parameter: str, medium: Medium, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = module
        given = medium.join(medium.sample(1, dtype))
        signature = inspect.signature(module.forward)
        rest = [known for name, known in signature.parameters.items() if name != parameter]
        tokens = next(name for name in (p.name for p in rest) if name in (*TOKENS, *TARGETS))

        def forward(*positional: Any, **named: Any) -> Any:
            named |= dict(zip((p.name for p in rest), positional, strict=False))
            fixed = given.to(next(module.parameters()).dtype).expand(len(named[tokens]), *given.shape[1:])
            return module(**{parameter: fixed}, **named)

        forward.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        self.forward = forward


def text_beside_medium(module: nn.Module, dtype: torch.dtype, tried: dict[str, str]) -> Iterator[WithMedium]:
    """The model as one of tokens, for each medium that it may take beside them; nothing if it takes no tokens."""
    parameters = parameters_of(module)
    kind, parameter = find_medium(module, parameters)
    required = required_names(parameters)
    names = [name for name in required if name in (*TOKENS, *TARGETS) and name != parameter]
    if kind is None or len(names) != 1 or parameter not in required or passes_by_position(parameters, parameter):
        return
    for medium in itertools.islice(MEDIA[kind](module), 12):
        wrapped = WithMedium(module, parameter, medium, dtype)
        try:
            with torch.no_grad():
                wrapped(torch.full((2, 5), 3))
        except Exception as error:
            tried.setdefault(f"{medium.words} with {names[0]}", describe_error(error))
            continue
        yield wrapped


# -- images ------------------------------------------------------------------------------------------------------------


def images(module: nn.Module, *, channels_last: bool = False) -> Iterator[Medium]:
    """The images that it may take, likely sizes first; channels_last: also with the channels as the last axis."""
    for channels, side in image_sizes(module):
        tile = side // GRID
        said = f"changed tile by tile ({GRID} × {GRID} tiles of {tile} × {tile} pixels)"
        size = channels * tile * tile
        join = _tiles_joiner(channels, tile)
        yield Medium(f"images (b, {channels}, {side}, {side}), {said}", GRID * GRID, size, join)
        if getattr(module, "input_axis", None) == 2 or channels_last:
            last = f"images (b, {side}, {side}, {channels}), {said}"
            yield Medium(last, GRID * GRID, size, lambda x, join=join: join(x).permute(0, 2, 3, 1))


def _tiles_joiner(channels: int, tile: int) -> Callable[[Tensor], Tensor]:
    return lambda x: join_tiles(x, channels, tile)


def join_tiles(x: Tensor, channels: int, tile: int) -> Tensor:
    """Tiles (b, n, c), row by row, as an image (b, channels, height, width).

    >>> join_tiles(torch.arange(16.0).view(1, 16, 1), 1, 1)[0, 0, 1]
    tensor([4., 5., 6., 7.])
    """
    grid = x.unflatten(-1, (channels, tile, tile)).unflatten(1, (GRID, GRID))  # b, row, column, channel, y, x
    return grid.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def image_sizes(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Channels and side of the images that it may take, likely ones first."""
    config = getattr(module, "config", None)
    channels = [part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)][:1]
    sides = _numbers(module, ("image_size", "img_size", "image", "input_size", "input_resolution", "sample_size"))
    channels += _numbers(module, ("num_channels", "channels", "in_channels", "in_chans", "input_channels"))
    staged = any(
        isinstance(getattr(config, name, None), list | tuple) for name in ("depths", "hidden_sizes", "layer_type")
    )
    usual = (128, 32, 224) if staged else (32, 28, 64, 224, 16, 256)  # a pyramid halves its map several times
    for side in dict.fromkeys(side for side in (*sides, *usual) if side % GRID == 0 and 0 < side <= 512):
        for count in dict.fromkeys((*channels[:1], 3, 1)):
            yield count, side


def _numbers(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    """Sizes that the module, its parts or its config have under these names."""
    config = getattr(module, "config", None)
    settings = [value for value in vars(module).values() if dataclasses.is_dataclass(value)]
    found: list[int] = []
    for holder in (config, getattr(config, "vision_config", None), module, *settings, *list(module.children())[:8]):
        for name in names:
            try:
                size = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
            except Exception:  # a field that differs from layer to layer raises
                continue
            size = size[-1] if isinstance(size, tuple | list) and size else size
            if isinstance(size, int) and not isinstance(size, bool):
                found.append(size)
    return found


def _fixed_noise(module: nn.Module, batch: int) -> Tensor:
    side = next(iter(_numbers(module, ("image_size",))), 32)
    patch = next(iter(_numbers(module, ("patch_size",))), 8)
    return torch.linspace(0, 1, (side // patch) ** 2).expand(batch, -1)


# -- video and audio ---------------------------------------------------------------------------------------------------


def videos(module: nn.Module) -> Iterator[Medium]:
    """The videos that it may take: frames first or channels first."""
    counts = _numbers(module, ("num_frames", "frames", "frames_per_clip", "n_frames", "image_patch_frames"))
    for channels, side in image_sizes(module):
        for frames in dict.fromkeys((*counts, 4, 8, 16)):
            size = channels * side * side
            shape = (frames, channels, side, side)

            def frames_first(x: Tensor, shape: tuple[int, ...] = shape) -> Tensor:
                return x.unflatten(-1, shape[1:])

            words = ", changed frame by frame"
            first = f"video (b, {frames}, {channels}, {side}, {side}){words}"
            second = f"video (b, {channels}, {frames}, {side}, {side}){words}"
            yield Medium(first, frames, size, frames_first)
            yield Medium(second, frames, size, lambda x, join=frames_first: join(x).transpose(1, 2))


def waves(module: nn.Module) -> Iterator[Medium]:
    """The waveforms that it may take: (b, samples) or (b, 1, samples)."""
    known = _numbers(module, ("n_samples", "num_samples", "sample_length", "audio_length"))
    for samples in dict.fromkeys((*known, 3200, 1024, 16_000)):
        piece = samples // STRETCHES
        if piece * STRETCHES != samples:
            continue
        words = f"changed in {STRETCHES} stretches of {piece}"
        yield Medium(f"waveforms (b, {samples}), {words}", STRETCHES, piece, lambda x: x.flatten(1))
        yield Medium(f"waveforms (b, 1, {samples}), {words}", STRETCHES, piece, lambda x: x.flatten(1)[:, None])


def spectrograms(module: nn.Module) -> Iterator[Medium]:
    """The spectrograms that it may take: (b, bands, frames), (b, frames, bands), or with a channel."""
    names = ("num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", "num_mel", "n_feats", "input_dim")
    bands = [part.in_channels for part in module.modules() if isinstance(part, nn.Conv1d)][:1]
    counts = _numbers(module, ("max_length", "num_frames", "n_frames", "spec_size"))
    counts += [2 * count for count in _numbers(module, ("max_source_positions", "n_audio_ctx", "n_ctx"))]
    for band in dict.fromkeys((*bands, *_numbers(module, names), 80)):
        for frames in dict.fromkeys((*(count for count in counts if count <= 3000), 64, 128, 16)):
            if frames % STRETCHES or band < 2:
                continue
            size = band * (frames // STRETCHES)
            words = f"changed in {STRETCHES} stretches of {frames // STRETCHES} frames"

            def frames_first(x: Tensor, band: int = band) -> Tensor:
                return x.unflatten(-1, (-1, band)).flatten(1, 2)

            ways: dict[str, Callable[[Tensor], Tensor]] = {
                f"(b, {band}, {frames})": lambda x, join=frames_first: join(x).transpose(1, 2),
                f"(b, {frames}, {band})": frames_first,
                f"(b, 1, {frames}, {band})": lambda x, join=frames_first: join(x)[:, None],
                f"(b, 1, {band}, {frames})": lambda x, join=frames_first: join(x).transpose(1, 2)[:, None],
            }
            for shape, join in ways.items():
                yield Medium(f"spectrograms {shape}, {words}", STRETCHES, size, join)


def signals() -> Iterator[Medium]:
    """Signals of a few channels, (b, channels, samples)."""
    for channels in (3, 1, 2):
        for samples in (64, 128, 256, 512, 1024):
            piece = samples // STRETCHES

            def join(x: Tensor, channels: int = channels) -> Tensor:
                return x.unflatten(-1, (channels, -1)).transpose(1, 2).flatten(2)

            words = f"signals (b, {channels}, {samples}), changed in {STRETCHES} stretches of {piece}"
            yield Medium(words, STRETCHES, channels * piece, join)


MEDIA: dict[str, Callable[[nn.Module], Iterator[Medium]]] = {
    "image": images,
    "video": videos,
    "wave": waves,
    "spectrogram": spectrograms,
}
