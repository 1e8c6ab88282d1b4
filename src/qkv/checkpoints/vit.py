"""ViT: patches, a class token, learned positions, pre-norm and a final norm. The pooler is left out, and kept for the
way back; a bare ViTModel becomes a ViT with no classes."""

from typing import Any

from qkv.checkpoints.family import Family
from qkv.checkpoints.gpt2 import ACTIVATIONS, THEIR_ACTIVATIONS
from qkv.checkpoints.switches import Switches, fits
from qkv.checkpoints.tables import UNBATCHED, Row
from qkv.models import ViT, ViTConfig

TABLE = [
    Row("class_token", "vit.embeddings.cls_token"),
    Row("positions.weight", "vit.embeddings.position_embeddings", UNBATCHED),
    Row("patches.convolution", "vit.embeddings.patch_embeddings.projection"),
    Row("blocks.*.attention_norm", "vit.encoder.layer.*.layernorm_before"),
    Row("blocks.*.attention.to_q", "vit.encoder.layer.*.attention.attention.query"),
    Row("blocks.*.attention.to_k", "vit.encoder.layer.*.attention.attention.key"),
    Row("blocks.*.attention.to_v", "vit.encoder.layer.*.attention.attention.value"),
    Row("blocks.*.attention.to_out", "vit.encoder.layer.*.attention.output.dense"),
    Row("blocks.*.feed_forward_norm", "vit.encoder.layer.*.layernorm_after"),
    Row("blocks.*.feed_forward.to_hidden", "vit.encoder.layer.*.intermediate.dense"),
    Row("blocks.*.feed_forward.to_out", "vit.encoder.layer.*.output.dense"),
    Row("norm", "vit.layernorm"),
    Row("head", "classifier"),
]


def read(switches: Switches) -> ViTConfig:
    switches.only("qkv_bias", True)
    switches.only("is_encoder_decoder", False)
    switches.skip(("attention_probs_dropout_prob", "encoder_stride"))
    switches.skip(("pooler_act", "pooler_output_size"))  # of the pooler, which is left out
    bare = switches.look("architectures") == ["ViTModel"]
    return ViTConfig(
        image_size=_side(switches, "image_size", 224),
        patch_size=_side(switches, "patch_size", 16),
        channels=switches.count("num_channels", 3),
        num_classes=0 if bare else _classes(switches),
        dim=switches.count("hidden_size", 768),
        layers=switches.count("num_hidden_layers", 12),
        heads=switches.count("num_attention_heads", 12),
        mlp_dim=switches.count("intermediate_size", 3072),
        activation=switches.choice("hidden_act", ACTIVATIONS, "gelu"),
        norm_eps=switches.number("layer_norm_eps", 1e-12),
        dropout=switches.number("hidden_dropout_prob", 0.0),
    )


def write(config: ViTConfig) -> dict[str, Any]:
    fits(
        config,
        "ViT",
        norm="layer",
        order="pre",
        pooling="cls",
        position="learned",
        final_norm=(None, True),
        bias=True,
        activation=tuple(THEIR_ACTIVATIONS),
    )
    labels = {str(number): f"LABEL_{number}" for number in range(config.num_classes)}
    named = {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": THEIR_ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "qkv_bias": True,
        **(named if config.num_classes else {"architectures": ["ViTModel"]}),
    }


def _side(switches: Switches, name: str, default: int) -> int:
    """A side of a square; theirs may be written as two sides."""
    value = switches.look(name)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1] or not isinstance(value[0], int):
            raise ValueError(f"{switches.where}: {name}={value!r} has no equal in qkv, which knows squares only")
        return value[0]
    return switches.count(name, default)


def _classes(switches: Switches) -> int:
    """As many as have names; 2 where none are given."""
    labels = switches.look("id2label")
    return len(labels) if isinstance(labels, dict) else switches.count("num_labels", 2)


VIT = Family(
    name="vit",
    architectures=("ViTForImageClassification", "ViTModel"),
    model=ViT,
    read=read,
    write=write,
    table=lambda config: TABLE,
    prefix="vit.",
    bare=("ViTModel",),
    left_out=(r"pooler\.dense\.(weight|bias)",),
)
