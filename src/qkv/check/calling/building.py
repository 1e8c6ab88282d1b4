"""Build a class, or call a factory, with small sizes guessed from the names of its parameters."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import sys
import typing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from qkv.check.calling.guard import call_target, seeded
from qkv.check.calling.loading import missing_device
from qkv.check.calling.names import KEY_HEAD_COUNTS, TOKENS, VECTORS, qkv_role, required_names

# a small size, and the constructor parameters that get it
SIZES: dict[int, tuple[str, ...]] = {
    32: (
        "width", "dim", "d_model", "embed_dim", "n_embd", "hidden_size", "emb_dim", "model_dim", "embedding_dim", "c",
        "d_in", "d_out", "dmodel", "embed_size", "hidden_units", "embedding_size", "emb_size", "d_embed", "d_hidden",
        "dim_model", "in_dim", "out_dim", "d_embedding", "num_hiddens", "query_size", "key_size", "value_size",
        "image_size", "img_size", "image", "input_dim", "features", "n_state", "n_feat", "num_features",
        "attention_dim", "feature_dim", "input_size", "output_dim", "n_features", "channels_in", "d", "dim_in",
        "dim_out", "in_features", "out_features", "model_size", "model_width", "num_units", "n_hidden", "nhid", "ninp",
        "d_x", "dims", "embedding", "query_dim", "kv_dim", "context_dim", "q_dim", "k_dim", "kdim", "vdim", "d_context",
        "memory_dim", "cond_dim", "embed", "latent_dim", "d_latent", "d_latents", "latent_size", "num_hidden", "emb",
        "cross_attention_dim", "encoder_dim", "decoder_dim", "C", "D", "E", "d_input", "d_output", "dim_latent",
    ),
    4: (
        "heads", "num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "h", "n_attn_heads", "head_count",
        "attention_heads", "number_of_heads", "num_head", "nheads", "n_h", "head_num",
        "num_q_heads", "n_q_heads", "H", "n_query_heads",
    ),
    2: (
        "layers", "num_layers", "n_layer", "n_layers", "num_hidden_layers", "depth", "num_blocks", "N", "n_blocks",
        "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head", "num_encoder_layers",
        "num_decoder_layers", "n_kv_groups", "num_kv_groups", "kv_groups", "number_of_layers", "encoder_layers",
        "decoder_layers", "blocks", "nlayers", "kv_head", "n_groups", "num_groups", "groups", "num_key_heads", "n_kv",
        "nlayer", "num_self_attends",
    ),
    64: (
        "vocab", "vocab_size", "n_vocab", "num_tokens", "hidden", "hidden_dim", "ff_dim", "d_ff", "dim_feedforward",
        "intermediate_size", "mlp_dim",
        "src_vocab", "tgt_vocab",
        "src_vocab_size", "tgt_vocab_size", "trg_vocab_size", "source_vocab", "target_vocab", "ntoken", "ntokens",
        "ffn_dim", "ffn_hidden", "d_mlp", "mlp_size",
        "inner_dim", "feedforward_dim", "ffn_size",
        "ff_size", "hidden_features", "num_embeddings", "dim_ff", "d_ffn", "n_tokens",
        "input_vocab_size", "target_vocab_size",
    ),
    512: (
        "length", "block_size", "max_len", "max_length", "max_seq_len", "seq_len", "context_length", "n_positions",
        "max_position_embeddings", "context_size", "n_ctx", "max_sequence_length", "max_seq_length", "context",
        "max_context", "max_tokens", "max_positions", "seq_length", "T", "sequence_length", "window_length", "max_t",
        "max_target_len", "max_source_len", "maxlen", "max_T", "ctx_len", "max_pos", "num_positions", "max_seqlen",
        "max_cache_len", "max_cache_length", "cache_size",
    ),
    8: (
        "head_dim", "d_head", "head_width", "d_k", "dim_head", "head_size", "d_v", "d_q", "dim_k", "dim_v", "dk", "dv",
        "patch_size", "patch", "hd", "head_width", "window", "window_size", "chunk_size", "num_latents", "n_latents",
        "chunk", "bucket_size", "latents", "num_queries", "num_memory", "n_mem",
        "d_key", "d_value", "key_dim", "value_dim", "dim_key", "dim_value", "dim_q",
    ),
    3: ("channels", "in_channels", "in_chans", "num_channels", "n_channels", "input_channels", "kernel_size"),
    10: ("classes", "num_classes", "n_classes", "num_labels", "n_class", "num_outputs", "n_out"),
}  # fmt: skip
SIZE_GUESSES = {name: size for size, names in SIZES.items() for name in names}
DROPOUT_NAMES = (
    "dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "attn_dropout", "resid_dropout", "p", "drop", "dropout_p",
    "drop_rate", "dropout_rate", "p_drop", "attention_dropout", "proj_drop", "attn_drop", "drop_prob", "dropout_prob",
    "emb_dropout", "pdrop", "p_dropout", "rate", "ff_dropout", "attention_probs_dropout_prob",
    "hidden_dropout_prob", "drop_path", "drop_path_rate", "p_attn", "attn_p", "dropout_probability",
)  # fmt: skip
# sizes that switch something on: never guessed for a config, which may leave them out
SETTINGS = (
    "window",
    "window_size",
    "chunk_size",
    "chunk",
    "num_latents",
    "n_latents",
    "latents",
    "cross_attention_dim",
)
CONFIG_NAMES = (
    "config",
    "cfg",
    "args",
    "params",
    "model_args",
    "hparams",
    "conf",
    "hps",
    "hp",
    "opts",
    "options",
    "spec",
)


class GuessedConfig(SimpleNamespace):
    """A config with a small value for every known name, read as config.name or as config["name"]."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self).get(name, default)


def build(found: Any, arguments: dict[str, Any] | None = None) -> tuple[Any, str]:
    """An instance of a class, or what a factory returns, and the call that built it.

    Sizes that are not in `arguments` are guessed. What is neither a class nor a factory is returned as it is.
    """
    if not inspect.isclass(found) and not is_factory(found, arguments):
        return found, ""
    if inspect.isclass(found) and issubclass(found, torch.autograd.Function):
        return found.apply, ""
    name = getattr(found, "__name__", "the factory")
    guessed = _constructor_values(found, dict(arguments or {}))
    first: Exception | None = None
    for values in _likely_values(found, guessed):
        try:
            built = _call_with_config(found, values)
        except Exception as error:
            first = first or error  # the error of the first try says most
            continue
        call = _show_call(name, values)
        if built is None:
            raise ValueError(f"{call} returned nothing; a factory must return a module or a function")
        return built, call
    assert first is not None
    if (needs := missing_device(first)) is not None:
        raise ValueError(f"{name} could not be built: {needs}") from None
    message = f"{type(first).__name__}: {' '.join(str(first).split())[:300]}"
    raise ValueError(f"{_show_call(name, guessed)} failed: {message}; set its arguments with --args") from first


def _likely_values(found: Any, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The values, and what to try if they do not fit: tuples for lists (JSON has none), another config."""
    yield values
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if tuples != values:
        yield tuples
    for config in _configs_beside(found):
        configs = {key: _build_config(config) for key, value in values.items() if isinstance(value, GuessedConfig)}
        if configs and None not in configs.values():
            yield values | configs


def _show_call(name: str, values: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_shorten(value)}' for key, value in values.items())})"


def _call_with_config(found: Any, values: dict[str, Any]) -> Any:
    """Call a constructor; a field that it misses in a guessed config is added, and the call repeated."""
    configs = [value for value in values.values() if isinstance(value, GuessedConfig)]
    for _ in range(12):
        try:
            with seeded(0):
                return call_target(found, **values)
        except (AttributeError, KeyError) as error:
            missed = error.name if isinstance(error, AttributeError) else error.args[0]
            guess = _guess_by_words(str(missed))
            if missed is None or guess is None or not configs or missed in configs[0]:
                raise
            for config in configs:
                setattr(config, missed, guess)
    return call_target(found, **values)


def fewer_key_heads(found: Any, arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments of a class, with half as many key heads as query heads if its default is as many."""
    if not inspect.isclass(found):
        return arguments
    parameters = inspect.signature(found).parameters
    given = arguments or {}
    keys = next((name for name in parameters if name in KEY_HEAD_COUNTS and name not in given), None)
    heads = next((name for name in parameters if name in SIZES[4]), None)
    if keys is None or heads is None:
        return arguments
    count = given.get(heads, parameters[heads].default)
    count = count if isinstance(count, int) else SIZE_GUESSES[heads]
    return {**given, keys: max(count // 2, 1)} if parameters[keys].default in (None, count) else arguments


def is_factory(found: Any, arguments: dict[str, Any] | None = None) -> bool:
    """Whether it is a function that builds a module or a function: it takes sizes and settings, and no tensors.

    >>> def make_layer(dim, heads=4): ...
    >>> def attend(x, heads=4): ...
    >>> is_factory(make_layer), is_factory(attend)
    (True, False)
    """
    if isinstance(found, torch.nn.Module) or not inspect.isroutine(found):
        return False
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False
    returned = str(parameters and inspect.signature(found).return_annotation)
    if "Tensor" in returned or "ndarray" in returned:
        return False
    if any(str(parameter.annotation).endswith(("Tensor", "ndarray", "Array")) for parameter in parameters.values()):
        return False
    if any(qkv_role(name) is not None for name in parameters):
        return False
    if arguments and all(name in parameters for name in arguments):
        return True
    required = required_names(parameters)
    if not required:
        first = next(iter(parameters), None)
        return first is None or first not in (*VECTORS, *TOKENS)
    return all(_guess(name, parameters[name], {}) is not None for name in required) and required[0] not in (
        "x",
        "inputs",
    )


def _constructor_values(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The given arguments, and guesses for the other parameters."""
    parameters = inspect.signature(kind).parameters
    name_of_kind = getattr(kind, "__name__", "the factory")
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in given.keys() - parameters.keys():
            near = difflib.get_close_matches(name, parameters, n=1)
            offered = f"did you mean {near[0]}?" if near else f"it takes {', '.join(parameters) or 'none'}"
            raise ValueError(f"{name_of_kind} takes no argument {name!r}; {offered}")
    hints = _type_hints(kind)
    values = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in given:
            values[name] = given.pop(name)
        elif (guess := _guess(name, parameter, hints, _own_config(kind))) is not None:
            values[name] = guess
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{name_of_kind} needs {name!r}, which could not be guessed; set it with --args '{{\"{name}\": …}}'"
            )
    return values | given


def _type_hints(kind: Any) -> dict[str, Any]:
    """The annotations of its parameters as types, also if they are written as text."""
    try:
        return typing.get_type_hints(kind.__init__ if inspect.isclass(kind) else kind)
    except Exception:  # names that exist for type checkers alone
        return {}


def _guess(name: str, parameter: inspect.Parameter, hints: dict[str, Any], own: type | None = None) -> Any:
    """A small value for a parameter; None to leave it out. `own`: the class of configs of the target."""
    kind = hints.get(name, parameter.annotation)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return build(kind, _smaller(kind))[0] if parameter.default is parameter.empty else None
    if parameter.default is not parameter.empty:
        return None
    if name in DROPOUT_NAMES:
        return 0.0
    if name.lower() in CONFIG_NAMES or (isinstance(kind, type) and kind.__name__.endswith(("Config", "Args"))):
        if isinstance(kind, type) and kind not in (dict, SimpleNamespace, object, inspect.Parameter.empty):
            return build(kind)[0]
        if own is not None and (config := _build_config(own)) is not None:
            return config
        sizes = {field: size for field, size in SIZE_GUESSES.items() if field not in SETTINGS}
        return GuessedConfig(**sizes | dict.fromkeys(DROPOUT_NAMES, 0.0) | {"bias": True, "qkv_bias": True})
    if name in SIZE_GUESSES:
        return SIZE_GUESSES[name]
    guess = _guess_by_type(name, kind)
    if guess is None and _is_plain_class(kind):  # a config under another name
        return build(kind)[0]
    return guess


def _configs_beside(found: Any) -> list[type]:
    """The classes of configs in the module of a target."""
    module = sys.modules.get(getattr(found, "__module__", ""))
    return [
        value
        for name, value in ({} if module is None else vars(module)).items()
        if isinstance(value, type) and name.endswith(CONFIG_CLASSES)
    ]


def _own_config(found: Any) -> type | None:
    """The class of configs in the module of a target whose name begins like that of the target (Bert, BertConfig)."""
    name = getattr(found, "__name__", "")
    own = [kind for kind in _configs_beside(found) if name.startswith(kind.__name__.removesuffix("Config"))]
    return max(own, key=lambda kind: len(kind.__name__), default=None)


def _build_config(kind: type) -> Any:
    """A small config; None if its values cannot be guessed."""
    try:
        return build(kind, _smaller(kind) if dataclasses.is_dataclass(kind) else None)[0]
    except Exception:
        return None


CONFIG_CLASSES = ("Config", "ModelArgs", "Args", "Params", "Hyperparameters")


def _is_plain_class(kind: Any) -> bool:
    """Whether it is a class of the checked code that holds settings: no module, no tensor, nothing built in."""
    if not isinstance(kind, type) or issubclass(kind, torch.nn.Module | torch.Tensor):
        return False
    return kind.__module__.partition(".")[0] not in ("builtins", "typing", "torch", "numpy", "collections", "inspect")


def _smaller(config: Any) -> dict[str, Any]:
    """Small sizes for a config whose defaults make a large model; nothing for another."""
    defaults = {field.name: field.default for field in dataclasses.fields(config) if field.init}
    sizes = {name: value for name, value in defaults.items() if name in SIZE_GUESSES and type(value) is int}
    widest = max((value for name, value in sizes.items() if SIZE_GUESSES[name] == 32), default=0)
    return {name: SIZE_GUESSES[name] for name in sizes} if widest > 512 else {}


def _guess_by_type(name: str, kind: Any) -> Any:
    """A value by its annotation, or by the words in its name."""
    if kind is bool or name.startswith(("use_", "is_", "has_", "return_")):
        return False
    if kind is float:
        return 0.0 if "drop" in name else 1.0
    if kind is str or (guess := _guess_by_words(name)) is None:
        return None
    return guess


WORDS: dict[str, int] = {  # parts of names, and a size
    "idx": 0, "index": 0,
    "kv_head": 2, "key_head": 2, "group": 2, "head_dim": 8, "dim_head": 8, "head_size": 8, "head": 4, "layer": 2,
    "depth": 2, "block": 2, "vocab": 64, "class": 10, "patch": 8, "window": 8, "chunk": 8, "latents": 8, "max_": 512,
    "length": 512, "position": 512, "ctx": 512, "ff": 64, "mlp": 64, "dim": 32, "d_": 32, "embed": 32, "hidden": 32,
    "size": 32, "width": 32, "feat": 32, "channel": 32, "rank": 8, "expert": 2, "num_": 4, "n_": 4,
}  # fmt: skip


def _guess_by_words(name: str) -> int | None:
    return next((size for word, size in WORDS.items() if word in name.lower()), None)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}(…)"
