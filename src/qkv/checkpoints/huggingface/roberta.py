"""RoBERTa, XLM-RoBERTa and CamemBERT (Hugging Face): BERT whose position table begins with rows for padding.

Positions are counted from pad_token_id + 1. Our Encoder returns hidden states. The pooler and the head (lm_head) are
left out, and kept for writing back.
"""

from dataclasses import replace

from qkv.checkpoints.huggingface import bert
from qkv.checkpoints.huggingface.config_reader import ConfigReader
from qkv.checkpoints.huggingface.family import Family, TensorRule, skip_rows
from qkv.models import Encoder, EncoderConfig

PADDING_ID = 1
PADDING_ROWS = PADDING_ID + 1


def _rename(rule: TensorRule) -> TensorRule:
    rule = replace(rule, theirs=f"roberta.{rule.theirs.removeprefix('bert.')}")
    return replace(rule, transform=skip_rows(PADDING_ROWS)) if rule.ours == "position_embedding.positions" else rule


TABLE = [_rename(rule) for rule in bert.TABLE]


def read_config(reader: ConfigReader) -> EncoderConfig:
    reader.require("pad_token_id", PADDING_ID)
    config = bert.read_config(reader)
    return replace(config, max_length=config.max_length - PADDING_ROWS)


def _family(name: str, stem: str) -> Family:
    return Family(
        name=name,
        architectures=(f"{stem}Model", f"{stem}ForMaskedLM"),
        model=Encoder,
        read_config=read_config,
        table=lambda config: TABLE,
        prefix="roberta.",
        headless=(f"{stem}Model",),
        left_out=(r"pooler\.dense\.(weight|bias)", r"lm_head\..*"),
        ignored=(r"embeddings\.position_ids",),
    )


ROBERTA = _family("roberta", "Roberta")
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
CAMEMBERT = _family("camembert", "Camembert")
