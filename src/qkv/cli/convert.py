"""`qkv convert`: convert a checkpoint between formats (Hugging Face, llama2.c, qkv)."""

from pathlib import Path
from typing import Literal

from rich.table import Table

from qkv.cli.console import err, out, print_json


def convert(source: str, target: Path, /, *, to: Literal["hf", "qkv"], json: bool = False) -> int:
    """Convert a checkpoint to Hugging Face's or qkv's format.

    SOURCE is a run directory, a qkv or Hugging Face model folder (GPT-2, OPT, Llama, Mistral, Qwen 2 and 3,
    BERT, DistilBERT, RoBERTa, XLM-RoBERTa, CamemBERT, ViT, BART; safetensors), a llama2.c file (.bin), or a hub id such
    as openai-community/gpt2. Only tensor names and layout change, not the values. tokenizer.json is copied. TARGET is
    written atomically.

    Examples:

        qkv convert openai-community/gpt2 models/gpt2 --to qkv
        qkv convert stories260K.bin models/stories --to hf
        qkv convert runs/vit-digits-1 models/digits-hf --to hf

    Parameters
    ----------
    source
        A run, a model folder, a llama2.c file or a hub id.
    target
        The output folder. An existing model folder is replaced; any other existing folder or a symbolic link is an
        error.
    to
        hf: a folder for Hugging Face's from_pretrained. qkv: a folder for qkv.load.
    json
        Print the result as JSON.
    """
    from qkv.checkpoints import left_out_tensors, load, resolve, save_hf

    if target.is_symlink():
        raise ValueError(f"cannot write {target}: it is a symbolic link; name the folder it leads to")
    if Path(source).exists():
        source = str(resolve(source))  # a run stands for its model
    if Path(source).exists() and target.exists() and Path(source).resolve() == target.resolve():
        raise ValueError(f"{target} is the source itself; choose another folder to write to")
    with err().status(f"reading {source}"):
        model = load(source)
    with err().status(f"writing {target}"):
        if to == "hf":
            save_hf(model, target)
        else:
            model.save(target)
    left = {name: list(tensor.shape) for name, tensor in left_out_tensors(model).items()}
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
        facts.add_row("unused tensors", f"{', '.join(left)}: not part of {done['model']}, kept for the conversion back")
    facts.add_row("load it with", "from_pretrained" if to == "hf" else f'qkv.load("{target}")')
    out().print(facts)
    return 0
