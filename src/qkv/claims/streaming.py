"""Claims about streaming attention: what a stream may see, and its latency."""

import torch
from torch import Tensor, nn

from qkv._figures import Heatmap
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, equal, near
from qkv.claims.experiment import Lab, influence_map, influence_shades, max_diff
from qkv.models import Encoder, EncoderConfig
from qkv.nn import Additive, MultiHeadAttention, masks
from qkv.nn.block import Block, BlockConfig

FAMILY = "self-attention"


def streaming(lab: Lab, tokens: int, chunk: int, layers: int, ahead: int) -> ExperimentResult:
    if tokens <= max(chunk - 1, layers * ahead):
        raise ValueError(
            f"tokens must be more than chunk - 1 and layers × ahead, {max(chunk - 1, layers * ahead)}, so that the "
            f"latency shows; got {tokens}"
        )
    x = lab.draw(1, tokens, 6)
    config = EncoderConfig(features=6, dim=16, layers=layers, heads=2, chunk_size=chunk, left_chunks=1)
    encoder = lab.build(lambda: Encoder(config)).eval()
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_normal_(parameter, generator=lab.generator)
    with lab.inside_layers(), torch.no_grad():
        offline, pieces, state, start = encoder(x), [], None, 0
        for size in (1, 3, 2, 5, tokens):  # pieces of any length, as from a microphone
            piece = x[:, start : start + size]
            start += size
            out, state = encoder.stream(piece, state, final=start >= tokens)
            pieces.append(out)
            if start >= tokens:
                break
    streamed = torch.cat(pieces, 1)
    with lab.inside_layers():
        chunked = influence_map(lambda y: encoder(y[None])[0], x[0])
        sliding = sliding_influence(lab, x[0], layers, ahead)
        additive = additive_influence(lab, x[0])
        normed = influence_map(lambda y: (y - y.mean(0)) / y.std(0), x[0])
    delays = {"chunks": lookahead(chunked), "sliding": lookahead(sliding)}
    return ExperimentResult(
        {
            "stream − offline": max_diff(streamed, offline),
            "chunks: tokens to wait for": delays["chunks"],
            "sliding mask: tokens to wait for": delays["sliding"],
            "additive attention: tokens to wait for": lookahead(additive),
            "a norm over time: tokens to wait for": lookahead(normed),
        },
        (
            equal("fed as a stream, chunked attention equals the offline pass", max_diff(streamed, offline)),
            near("chunks wait for chunk − 1 tokens, whatever the depth", delays["chunks"], chunk - 1, 0),
            near("sliding masks wait for layers × look-ahead", delays["sliding"], layers * ahead, 0),
            near("additive attention alone waits for the end", lookahead(additive), tokens - 1, 0),
            at_least("a norm over time sees the future", lookahead(normed), tokens - 1, "control"),
        ),
        (
            Heatmap("chunk mask", "input", "output", influence_shades(chunked)),
            Heatmap(f"sliding mask, {layers} layers", "input", "output", influence_shades(sliding)),
            Heatmap("additive attention alone", "input", "output", influence_shades(additive)),
        ),
    )


def sliding_influence(lab: Lab, x: Tensor, layers: int, ahead: int) -> Tensor:
    """The influence map of a stack whose layers each look `ahead` tokens ahead."""
    blocks = lab.build(
        lambda: nn.ModuleList(Block(BlockConfig(dim=x.shape[-1], heads=2, mlp_dim=12)) for _ in range(layers))
    )
    mask = masks.sliding_window(len(x), len(x), left=2, right=ahead)

    def run(y: Tensor) -> Tensor:
        y = y[None]
        for block in blocks:
            y = block(y, mask=mask)
        return y[0]

    return influence_map(run, x)


def additive_influence(lab: Lab, x: Tensor) -> Tensor:
    layer = lab.build(lambda: MultiHeadAttention(x.shape[-1], 1, score=Additive(8)))
    return influence_map(lambda y: layer(y[None])[0], x)


def lookahead(found: Tensor) -> int:
    """How far after its own position the farthest input is that an output depends on."""
    reach = [int(row.nonzero().max()) - t for t, row in enumerate(found) if bool((row > 0).any())]
    return max(reach)


CLAIMS = (
    Claim(
        "streaming",
        FAMILY,
        "Chunk-masked attention fed as a stream equals the offline pass; its latency is chunk − 1 tokens, that of a "
        "sliding mask layers × look-ahead.",
        "holds",
        "",
        streaming,
        (
            Knob("tokens", 16, "tokens", (2, 128)),
            Knob("chunk", 4, "tokens in a chunk", (1, 64)),
            Knob("layers", 3, "layers", (1, 16)),
            Knob("ahead", 1, "look-ahead of each layer of the sliding mask", (0, 64)),
        ),
        ("unmasked", "mask-after-softmax", "mask-one-late", "wrong-axis"),
        "Look-ahead adds up over layers, chunks do not; without a mask every output waits for the end.",
    ),
)
