"""ViT (Hugging Face): patches, a class token, learned positions, pre-norm and a final norm.

The pooler is left out, and kept for writing back. A ViTModel, which has no head, becomes a ViT with no classes.
"""

from typing import Any

from qkv.checkpoints.huggingface.config_reader import ConfigReader, Fields, read_fields, require_fields, write_fields
from qkv.checkpoints.huggingface.family import (
    ACTIVATIONS,
    ENCODER_FIELDS,
    HF_ACTIVATIONS,
    UNBATCHED,
    Family,
    TensorRule,
)
from qkv.models import ViT, ViTConfig

TABLE = [
    TensorRule("class_token", "vit.embeddings.cls_token"),
    TensorRule("positions.weight", "vit.embeddings.position_embeddings", UNBATCHED),
    TensorRule("patches.convolution", "vit.embeddings.patch_embeddings.projection"),
    TensorRule("blocks.*.attention_norm", "vit.encoder.layer.*.layernorm_before"),
    TensorRule("blocks.*.attention.to_q", "vit.encoder.layer.*.attention.attention.query"),
    TensorRule("blocks.*.attention.to_k", "vit.encoder.layer.*.attention.attention.key"),
    TensorRule("blocks.*.attention.to_v", "vit.encoder.layer.*.attention.attention.value"),
    TensorRule("blocks.*.attention.to_out", "vit.encoder.layer.*.attention.output.dense"),
    TensorRule("blocks.*.feed_forward_norm", "vit.encoder.layer.*.layernorm_after"),
    TensorRule("blocks.*.feed_forward.to_hidden", "vit.encoder.layer.*.intermediate.dense"),
    TensorRule("blocks.*.feed_forward.to_out", "vit.encoder.layer.*.output.dense"),
    TensorRule("norm", "vit.layernorm"),
    TensorRule("head", "classifier"),
]

FIELDS: Fields = {**ENCODER_FIELDS, "channels": ("num_channels", 3), "dropout": ("hidden_dropout_prob", 0.0)}


def read_config(reader: ConfigReader) -> ViTConfig:
    reader.require("qkv_bias", True)
    reader.require("is_encoder_decoder", False)
    reader.ignore(("attention_probs_dropout_prob", "encoder_stride"))
    reader.ignore(("pooler_act", "pooler_output_size"))  # of the pooler, which is left out
    headless = reader.get("architectures") == ["ViTModel"]
    return ViTConfig(
        image_size=_side(reader, "image_size", 224),
        patch_size=_side(reader, "patch_size", 16),
        num_classes=0 if headless else _num_classes(reader),
        activation=reader.choice("hidden_act", ACTIVATIONS, "gelu"),
        **read_fields(reader, FIELDS),
    )


def write_config(config: ViTConfig) -> dict[str, Any]:
    require_fields(
        config,
        "ViT",
        norm="layer",
        norm_order="pre",
        pooling="cls",
        position="learned",
        final_norm=(None, True),
        bias=True,
        activation=tuple(HF_ACTIVATIONS),
    )
    labels = {str(number): f"LABEL_{number}" for number in range(config.num_classes)}
    named = {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        **write_fields(config, FIELDS),
        "intermediate_size": config.mlp_dim or 4 * config.dim,
        "hidden_act": HF_ACTIVATIONS[config.activation],
        "attention_probs_dropout_prob": config.dropout,
        "qkv_bias": True,
        **(named if config.num_classes else {"architectures": ["ViTModel"]}),
    }


def _side(reader: ConfigReader, name: str, default: int) -> int:
    """The side of a square; they may write it as two sides."""
    value = reader.get(name)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1] or not isinstance(value[0], int):
            raise ValueError(f"{reader.where}: {name}={value!r} is not supported by qkv, which has squares only")
        return value[0]
    return reader.integer(name, default)


def _num_classes(reader: ConfigReader) -> int:
    """As many as have names; 2 if there are none."""
    labels = reader.get("id2label")
    return len(labels) if isinstance(labels, dict) else reader.integer("num_labels", 2)


VIT = Family(
    name="vit",
    architectures=("ViTForImageClassification", "ViTModel"),
    model=ViT,
    read_config=read_config,
    write_config=write_config,
    table=lambda config: TABLE,
    prefix="vit.",
    headless=("ViTModel",),
    left_out=(r"pooler\.dense\.(weight|bias)",),
)
