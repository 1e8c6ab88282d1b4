"""`qkv convert`: a checkpoint from one format to another."""

from pathlib import Path
from typing import Literal

from rich.table import Table

from qkv.cli.checkpoint import trained
from qkv.cli.console import err, out, print_json


def convert(source: str, target: Path, /, *, to: Literal["hf", "qkv"], json: bool = False) -> int:
    """Read a checkpoint of any kind qkv knows and write it as a folder, whole or not at all.

    SOURCE is a run, a folder of qkv's or of Hugging Face's (GPT-2, Llama, Mistral, Qwen 2 and 3, BERT, ViT, BART;
    safetensors, in one file or in shards), a llama2.c file (.bin), or a hub id such as openai-community/gpt2, which is
    fetched if no folder has that name. The numbers are not changed, only their names and arrangement; tokenizer.json
    comes along.

    Examples:

        qkv convert openai-community/gpt2 models/gpt2 --to qkv
        qkv convert stories260K.bin models/stories --to hf
        qkv convert runs/vit-digits-1 models/digits-hf --to hf

    Parameters
    ----------
    source
        A run's folder, a model's folder, a llama2.c file or a hub id.
    target
        The folder to write; an older model's folder of that name is replaced, any other is refused.
    to
        hf: a folder that Hugging Face's from_pretrained loads. qkv: a folder that qkv.load loads.
    json
        Print what was done as JSON.
    """
    from qkv.checkpoints import left_out, load, save_hf

    source = trained(source)
    if Path(source).exists() and target.exists() and Path(source).resolve() == target.resolve():
        raise ValueError(f"{target} is where the model is read from; choose another folder to write it to")
    with err().status(f"reading {source}"):
        model = load(source)
    with err().status(f"writing {target}"):
        if to == "hf":
            save_hf(model, target)
        else:
            model.save(target)
    left = {name: list(tensor.shape) for name, tensor in left_out(model).items()}
    done = {
        "source": source,
        "target": str(target),
        "format": to,
        "model": type(model).__name__,
        "parameters": model.num_parameters,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "files": sorted(path.name for path in target.iterdir()),
        "left_out": left,
    }
    if json:
        print_json(done)
        return 0
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_row("model", f"{done['model']}, {model.num_parameters:,} parameters in {done['dtype']}")
    facts.add_row("written", f"{target} ({', '.join(done['files'])})")
    if left:
        facts.add_row("kept aside", f"{', '.join(left)}: no part of {done['model']}, kept for the way back")
    facts.add_row("load it with", "from_pretrained" if to == "hf" else f'qkv.load("{target}")')
    out().print(facts)
    return 0
