"""Checkpoints in and out: our folders, Hugging Face's, llama2.c's files."""

from pathlib import Path

from qkv.checkpoints import bundled as shipped
from qkv.checkpoints.fetch import resolve
from qkv.checkpoints.huggingface import left_out, load_hf, save_hf
from qkv.checkpoints.llama2c import load_llama2c
from qkv.checkpoints.tokens import tokenizer
from qkv.checkpoints.torch_modules import from_torch
from qkv.models import Model, folder

__all__ = ["from_torch", "left_out", "load", "save_hf", "tokenizer"]


def load(path_or_id: str | Path) -> Model:
    """The model that a folder, a file or a hub id holds, ready to be used (in eval mode).

    - a folder as `model.save(folder)` writes it, or as Hugging Face's `save_pretrained` does: GPT-2, Llama, Mistral,
      Qwen 2 and 3, BERT, ViT, BART;
    - a llama2.c file (.bin);
    - a hub id such as "openai-community/gpt2": fetched by huggingface_hub if no folder has that name;
    - a model that comes with qkv: "qkv:digits" (`qkv.checkpoints.bundled.names()` says which there are).
    """
    path = resolve(path_or_id)
    if path.is_file():
        return load_llama2c(path)
    described = folder.read_config(path)
    if "qkv" in described:
        model = folder.load(path, Model.known)
        return model.float() if shipped.is_here(path) else model
    return load_hf(path)
