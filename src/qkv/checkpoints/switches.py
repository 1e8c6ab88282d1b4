"""A foreign config.json, read switch by switch: what is not understood is refused, never ignored."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

# Known to change nothing that a model computes once it is trained: where it came from, how it was trained, which tokens
# are special, what its classes are called, how generate() draws by default.
IRRELEVANT: frozenset[str] = frozenset(
    (
        "architectures",
        "model_type",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "torch_dtype",
        "dtype",
        "initializer_range",
        "initializer_factor",
        "init_std",
        "gradient_checkpointing",
        "use_cache",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "output_past",
        "torchscript",
        "chunk_size_feed_forward",
        "cross_attention_hidden_size",
        "_commit_hash",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        "mask_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "label2id",
        "num_labels",
        "_num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "classifier_dropout",
        "classif_dropout",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
        "max_length",
        "min_length",
        "length_penalty",
        "no_repeat_ngram_size",
        "num_beams",
        "early_stopping",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "prefix",
        "force_bos_token_to_be_generated",
        "transformers.js_config",
        "is_llama_config",
    )
)


class Switches:
    """The switches of one config.json; `where` is how its messages call it."""

    def __init__(self, plain: dict[str, Any], where: str) -> None:
        self.plain, self.where = plain, where
        self._read: set[str] = set(IRRELEVANT)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; the default is what the format means where it is left out."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{self.where}: {name} should be a number; got {value!r}")
        return float(value)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number, 0 or more."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{self.where}: {name} should be a whole number, 0 or more; got {value!r}")
        return value

    def maybe_count(self, name: str) -> int | None:
        """A whole number, or None where it is null or left out."""
        return None if self.look(name) is None else self.count(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {name} should be true or false; got {value!r}")
        return value

    def choice(self, name: str, ours: dict[str, T], default: str) -> T:
        """One of our choices, by the name that they give it."""
        value = self._take(name, default)
        if not isinstance(value, str) or value not in ours:
            raise ValueError(f"{self.where}: {name}={value!r} has no equal in qkv; known are {', '.join(ours)}")
        return ours[value]

    def only(self, name: str, *values: Any) -> None:
        """A switch that has no equal in qkv: it may be left out or have one of these values."""
        value = self.look(name)
        if name in self.plain and not any(
            value is one or (value == one and type(value) is type(one)) for one in values
        ):
            allowed = " or ".join(repr(one) for one in values)
            raise ValueError(f"{self.where}: {name}={value!r} has no equal in qkv; only {allowed} has")

    def skip(self, names: Iterable[str]) -> None:
        """Switches that change nothing that is computed: those of training."""
        self._read.update(names)

    def look(self, name: str) -> Any:
        """The value as it stands there, or None."""
        self._read.add(name)
        return self.plain.get(name)

    def finish(self) -> None:
        """Refuse what nobody has read."""
        if unread := sorted(set(self.plain) - self._read):
            raise ValueError(
                f"{self.where}: qkv does not know the switch {unread[0]!r} (= {self.plain[unread[0]]!r}) and will not "
                f"ignore it; remove it from the file if it changes nothing"
            )

    def _take(self, name: str, default: Any) -> Any:
        value = self.look(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"{self.where} lacks {name}")
        return value


def fits(config: Any, architecture: str, **allowed: Any) -> None:
    """Refuse a config of ours with a field that an architecture has no switch for; `allowed` holds what it has."""
    for name, values in allowed.items():
        values = values if isinstance(values, tuple) else (values,)
        value = getattr(config, name)
        if value not in values:
            has = " or ".join(repr(one) for one in values)
            raise ValueError(f"{name}={value!r} has no equal in {architecture}, which has {has} only")
