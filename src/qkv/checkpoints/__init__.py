"""Checkpoints: `qkv.load`, Hugging Face and llama2.c formats in and out, PyTorch modules, and the bundled models."""

from qkv.checkpoints import bundled
from qkv.checkpoints.huggingface.folder import left_out_tensors, save_hf
from qkv.checkpoints.loading import load, load_any, load_tokenizer, resolve, resume_command
from qkv.checkpoints.torch_modules import from_torch

__all__ = [
    "bundled",
    "from_torch",
    "left_out_tensors",
    "load",
    "load_any",
    "load_tokenizer",
    "resolve",
    "resume_command",
    "save_hf",
]
