"""Read a Hugging Face config.json key by key: keys that qkv does not understand are refused, never ignored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# These keys do not change what a trained model computes: where it came from, how it was trained, which tokens are
# special, the names of its classes, the defaults of generate(). Keys that start with an underscore are private to the
# program that wrote the file (_name_or_path, _model_name_or_path, _attn_implementation), and ignored as well.
_IGNORED = """
architectures model_type transformers_version name_or_path torch_dtype dtype initializer_range
initializer_factor init_std gradient_checkpointing use_cache return_dict output_hidden_states output_attentions
output_past torchscript chunk_size_feed_forward cross_attention_hidden_size bos_token_id eos_token_id
pad_token_id sep_token_id unk_token_id mask_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
id2label label2id num_labels problem_type finetuning_task task_specific_params classifier_dropout
classif_dropout summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
max_length min_length length_penalty no_repeat_ngram_size num_beams early_stopping do_sample temperature top_k top_p
repetition_penalty prefix force_bos_token_to_be_generated transformers.js_config is_llama_config
model_name_or_path tokenizer_class tokenizer_name model_max_length unsloth_version unsloth_fixed attn_implementation
cls_token_id additional_special_tokens use_bfloat16 tf_legacy_loss bad_words_ids begin_suppress_tokens suppress_tokens
diversity_penalty num_beam_groups num_return_sequences encoder_no_repeat_ngram_size exponential_decay_length_penalty
remove_invalid_values return_dict_in_generate output_scores typical_p language license
"""
IGNORED_KEYS = frozenset(_IGNORED.split())

Fields = dict[str, tuple[str, Any]]  # a field of our config: its key in config.json, and the default there


class ConfigReader:
    """The keys of one config.json; `where` names it in error messages."""

    def __init__(self, config: dict[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self._read: set[str] = set(IGNORED_KEYS)

    def read(self, name: str, default: Any) -> Any:
        """A value of the default's type; `int` stands for an integer that must be there, None for an optional one."""
        if default is None:
            return self.optional_integer(name)
        if isinstance(default, bool):
            return self.boolean(name, default)
        if isinstance(default, float):
            return self.number(name, default)
        return self.integer(name, None if default is int else default)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; the default is the format's where the key is left out."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{self.where}: {name} should be a number, got {value!r}")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number, at least 0."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{self.where}: {name} should be a whole number of at least 0, got {value!r}")
        return value

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where the key is null or left out."""
        return None if self.get(name) is None else self.integer(name)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name} should be true or false, got {value!r}")
        return value

    def choice(self, name: str, ours: dict[str, T], default: str) -> T:
        """One of our choices, by their name for it."""
        value = self._take(name, default)
        if not isinstance(value, str) or value not in ours:
            raise ValueError(f"{self.where}: {name}={value!r} is not supported by qkv; expected {', '.join(ours)}")
        return ours[value]

    def require(self, name: str, *values: Any) -> None:
        """A key that qkv has no counterpart for: it may be left out or have one of these values."""
        value = self.get(name)
        if name in self.config and not any(
            value is one or (value == one and type(value) is type(one)) for one in values
        ):
            allowed = " or ".join(repr(one) for one in values)
            raise ValueError(f"{self.where}: {name}={value!r} is not supported by qkv; expected {allowed}")

    def ignore(self, names: Iterable[str]) -> None:
        """Skip keys that do not change what is computed, such as those of training."""
        self._read.update(names)

    def get(self, name: str) -> Any:
        """The value as it is, or None."""
        self._read.add(name)
        return self.config.get(name)

    def check_all_read(self) -> None:
        """Raise a ValueError for a key that was not read."""
        if unread := sorted(name for name in set(self.config) - self._read if not name.startswith("_")):
            raise ValueError(
                f"{self.where}: qkv does not know the key {unread[0]!r} (= {self.config[unread[0]]!r}) and will not "
                f"ignore it; remove it from the file if it changes nothing"
            )

    def _take(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self.where} lacks {name}")
        return value


def read_fields(reader: ConfigReader, fields: Fields) -> dict[str, Any]:
    """The fields of our config that map one to one to keys; the type of the default says what a key holds."""
    return {name: reader.read(key, default) for name, (key, default) in fields.items()}


def write_fields(config: Any, fields: Fields) -> dict[str, Any]:
    """The keys for fields of our config; the inverse of `read_fields`."""
    return {key: getattr(config, name) for name, (key, _) in fields.items()}


def require_fields(config: Any, architecture: str, **allowed: Any) -> None:
    """Raise a ValueError if a field of our config has a value that an architecture cannot express."""
    for name, values in allowed.items():
        values = values if isinstance(values, tuple) else (values,)
        value = getattr(config, name)
        if value not in values:
            has = " or ".join(map(repr, values))
            raise ValueError(f"{name}={value!r} has no counterpart in {architecture}, which has {has} only")
