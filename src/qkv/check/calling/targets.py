"""Load the target that the user names (file.py:Name, package.module:Name) and build a class with small sizes."""

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

# a small size, and the constructor parameters that get it
SIZES: dict[int, tuple[str, ...]] = {
    32: (
        "width", "dim", "d_model", "embed_dim", "n_embd", "hidden_size", "emb_dim", "model_dim", "embedding_dim", "c",
        "d_in", "d_out", "dmodel", "embed_size", "hidden_units", "embedding_size", "emb_size", "d_embed", "d_hidden",
        "dim_model", "in_dim", "out_dim", "d_embedding", "num_hiddens", "query_size", "key_size", "value_size",
        "image_size", "img_size", "image", "input_dim", "features", "n_state", "n_feat", "num_features",
        "attention_dim", "feature_dim", "input_size", "output_dim", "n_features", "channels_in", "d", "dim_in",
        "dim_out", "in_features", "out_features",
    ),
    4: (
        "heads", "num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "h", "n_attn_heads", "head_count",
        "attention_heads", "number_of_heads", "num_q_heads", "n_q_heads", "H", "n_query_heads",
    ),
    2: (
        "layers", "num_layers", "n_layer", "n_layers", "num_hidden_layers", "depth", "num_blocks", "N", "n_blocks",
        "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head", "num_encoder_layers",
        "num_decoder_layers", "n_kv_groups", "num_kv_groups", "kv_groups", "number_of_layers", "encoder_layers",
        "decoder_layers", "blocks",
    ),
    64: (
        "vocab", "vocab_size", "n_vocab", "num_tokens", "hidden", "hidden_dim", "ff_dim", "d_ff", "dim_feedforward",
        "intermediate_size", "mlp_dim", "length", "block_size", "max_len", "max_length", "max_seq_len", "seq_len",
        "context_length", "n_positions", "max_position_embeddings", "context_size", "n_ctx", "src_vocab", "tgt_vocab",
        "src_vocab_size", "tgt_vocab_size", "trg_vocab_size", "source_vocab", "target_vocab", "ntoken", "ntokens",
        "max_sequence_length", "max_seq_length", "context", "max_context", "ffn_dim", "ffn_hidden", "d_mlp", "mlp_size",
        "max_tokens", "max_positions", "seq_length", "T", "sequence_length", "inner_dim", "feedforward_dim", "ffn_size",
        "ff_size", "hidden_features", "window_length", "num_embeddings", "dim_ff", "d_ffn", "n_tokens", "max_t",
        "input_vocab_size", "target_vocab_size", "max_target_len", "max_source_len",
    ),
    8: (
        "head_dim", "d_head", "head_width", "d_k", "dim_head", "head_size", "d_v", "d_q", "dim_k", "dim_v", "dk", "dv",
        "patch_size", "patch", "d_key", "d_value", "key_dim", "value_dim", "dim_key", "dim_value", "dim_q",
    ),
    3: ("channels", "in_channels", "in_chans", "num_channels", "n_channels"),
    10: ("classes", "num_classes", "n_classes", "num_labels"),
}  # fmt: skip
SIZE_GUESSES = {name: size for size, names in SIZES.items() for name in names}
DROPOUT_NAMES = (
    "dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "attn_dropout", "resid_dropout", "p", "drop", "dropout_p",
    "drop_rate", "dropout_rate", "p_drop", "attention_dropout", "proj_drop", "attn_drop", "drop_prob", "dropout_prob",
    "emb_dropout", "pdrop", "p_dropout", "rate", "ff_dropout",
)  # fmt: skip
CONFIG_NAMES = ("config", "cfg", "args", "params", "model_args", "hparams", "conf", "hps")


class TargetLoader:
    """Finds what the user names; a file is executed once, however often it is named."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}

    def find(self, target: str) -> Any:
        """The object behind `file.py:Name` or `package.module:Name`. Only the named file is executed."""
        where, colon, name = target.rpartition(":")
        if not colon or not where or not name:
            raise ValueError(f"a target is file.py:Name or package.module:Name; got {target!r}")
        module = self._load_file(Path(where)) if where.endswith(".py") else _import_module(where)
        try:
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError:
            public = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
            near = difflib.get_close_matches(name, public, n=1)
            offered = f"did you mean {near[0]}?" if near else f"it has {', '.join(public[:12]) or 'nothing to call'}"
            raise ValueError(f"{where} has no {name!r}; {offered}") from None
        return found

    def _load_file(self, path: Path) -> Any:
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        key = path.resolve()
        if key not in self._files:
            spec = importlib.util.spec_from_file_location(f"qkv_target_{path.stem}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            try:
                spec.loader.exec_module(module)
            except Exception as error:
                raise ValueError(f"{path} could not be run: {type(error).__name__}: {error}") from error
            self._files[key] = module
        return self._files[key]


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} could not be imported: {error}; a file needs its .py") from None


class GuessedConfig(SimpleNamespace):
    """A config with a small value for every known name, read as config.name or as config["name"]."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self).get(name, default)


def build(found: Any, arguments: dict[str, Any] | None = None) -> tuple[Any, str]:
    """An instance of a class and the call that built it; sizes that are not in `arguments` are guessed.

    What is not a class is returned as it is.
    """
    if not inspect.isclass(found):
        return found, ""
    values = _constructor_values(found, dict(arguments or {}))
    call = f"{found.__name__}({', '.join(f'{name}={_shorten(value)}' for name, value in values.items())})"
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return found(**values), call
    except Exception as error:
        raise ValueError(f"{call} failed: {type(error).__name__}: {error}; set its arguments with --args") from error


def _constructor_values(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The given arguments, and guesses for the other parameters."""
    parameters = inspect.signature(kind).parameters
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in given.keys() - parameters.keys():
            near = difflib.get_close_matches(name, parameters, n=1)
            offered = f"did you mean {near[0]}?" if near else f"it takes {', '.join(parameters) or 'none'}"
            raise ValueError(f"{kind.__name__} takes no argument {name!r}; {offered}")
    values = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in given:
            values[name] = given.pop(name)
        elif (guess := _guess(name, parameter)) is not None:
            values[name] = guess
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{kind.__name__} needs {name!r}, which could not be guessed; set it with --args '{{\"{name}\": …}}'"
            )
    return values | given


def _guess(name: str, parameter: inspect.Parameter) -> Any:
    """A small value for a parameter; None to leave it out."""
    if dataclasses.is_dataclass(parameter.annotation) and isinstance(parameter.annotation, type):
        return build(parameter.annotation)[0] if parameter.default is parameter.empty else None
    if name in DROPOUT_NAMES:
        return 0.0
    if parameter.default is not parameter.empty:
        return None
    if name in SIZE_GUESSES:
        return SIZE_GUESSES[name]
    if name.lower() in CONFIG_NAMES:
        return GuessedConfig(**SIZE_GUESSES | dict.fromkeys(DROPOUT_NAMES, 0.0) | {"bias": True, "qkv_bias": True})
    return None


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}(…)"
