"""Attention in real time: what a stream may see, and how long it waits."""

import torch
from torch import Tensor, nn

from qkv._figures import Map
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap
from qkv.claims.influence import influence
from qkv.claims.predicates import at_least, equal, near
from qkv.models import Encoder, EncoderConfig
from qkv.nn import Additive, MultiHeadAttention, masks
from qkv.nn.block import Block, BlockConfig

FAMILY = "self-attention"


def streaming(lab: Lab, tokens: int, chunk: int, layers: int, ahead: int) -> Measured:
    if tokens <= max(chunk - 1, layers * ahead):
        raise ValueError(
            f"tokens are more than chunk - 1 and layers × ahead, {max(chunk - 1, layers * ahead)}, so that the wait "
            f"shows; got {tokens}"
        )
    x = lab.draw(1, tokens, 6)
    config = EncoderConfig(features=6, dim=16, layers=layers, heads=2, chunk_size=chunk, left_chunks=1)
    encoder = lab.build(lambda: Encoder(config)).eval()
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_normal_(parameter, generator=lab.generator)
    with lab.inside_layers(), torch.no_grad():
        offline, pieces, state, start = encoder(x), [], None, 0
        for size in (1, 3, 2, 5, tokens):  # pieces of any length, as a microphone gives them
            piece = x[:, start : start + size]
            start += size
            out, state = encoder.stream(piece, state, final=start >= tokens)
            pieces.append(out)
            if start >= tokens:
                break
    streamed = torch.cat(pieces, 1)
    with lab.inside_layers():
        chunked = influence(lambda y: encoder(y[None])[0], x[0])
        sliding = sliding_influence(lab, x[0], layers, ahead)
        additive = additive_influence(lab, x[0])
        normed = influence(lambda y: (y - y.mean(0)) / y.std(0), x[0])
    delays = {"chunks": reach_ahead(chunked), "sliding": reach_ahead(sliding)}
    return Measured(
        {
            "stream − offline": gap(streamed, offline),
            "chunks: tokens to wait for": delays["chunks"],
            "sliding mask: tokens to wait for": delays["sliding"],
            "additive attention: tokens to wait for": reach_ahead(additive),
            "a norm over time: tokens to wait for": reach_ahead(normed),
        },
        (
            equal("fed as a stream, chunked attention equals the offline pass", gap(streamed, offline)),
            near("chunks wait for chunk − 1 tokens, whatever the depth", delays["chunks"], chunk - 1, 0),
            near("sliding masks wait for layers × look-ahead", delays["sliding"], layers * ahead, 0),
            near("additive attention alone waits for the end", reach_ahead(additive), tokens - 1, 0),
            at_least("a norm over time sees the future", reach_ahead(normed), tokens - 1, "control"),
        ),
        (
            Map("chunk mask", "input", "output", on_scale(chunked)),
            Map(f"sliding mask, {layers} layers", "input", "output", on_scale(sliding)),
            Map("additive attention alone", "input", "output", on_scale(additive)),
        ),
    )


def sliding_influence(lab: Lab, x: Tensor, layers: int, ahead: int) -> Tensor:
    """The influence through a stack whose layers each look so far ahead."""
    blocks = lab.build(
        lambda: nn.ModuleList(Block(BlockConfig(dim=x.shape[-1], heads=2, mlp_dim=12)) for _ in range(layers))
    )
    mask = masks.sliding_window(len(x), len(x), left=2, right=ahead)

    def run(y: Tensor) -> Tensor:
        y = y[None]
        for block in blocks:
            y = block(y, mask=mask)
        return y[0]

    return influence(run, x)


def additive_influence(lab: Lab, x: Tensor) -> Tensor:
    layer = lab.build(lambda: MultiHeadAttention(x.shape[-1], 1, score=Additive(8)))
    return influence(lambda y: layer(y[None])[0], x)


def reach_ahead(found: Tensor) -> int:
    """How far after its own place the farthest input stands that an output depends on."""
    reach = [int(row.nonzero().max()) - t for t, row in enumerate(found) if bool((row > 0).any())]
    return max(reach)


def on_scale(found: Tensor) -> list[list[float]]:
    """Influence as a share of the row's largest, rooted so that small influences are seen."""
    return (found / found.max(-1, keepdim=True).values.clamp(min=1e-300)).sqrt().tolist()


CLAIMS = (
    Claim(
        "streaming",
        FAMILY,
        "Chunk-masked attention fed as a stream equals the offline pass; it waits chunk − 1 tokens, a sliding mask "
        "layers × look-ahead.",
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
        "Chunks do not add up over layers, look-ahead does; without a mask every output waits for the end.",
    ),
)
