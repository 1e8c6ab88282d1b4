"""`qkv look`: the attention inside a checkpoint, on an input of yours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.bundled_models import print_bundled_models
from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.interp.look import LookResult

Text = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def look(
    checkpoint: str | None = None,
    /,
    *inputs: str,
    target: Text = None,
    layer: str | None = None,
    head: int | None = None,
    query: str | None = None,
    html: Path | None = None,
    full: bool = False,
    png: Path | None = None,
    ablate: list[str] | None = None,
    scale: list[str] | None = None,
    mask_edge: list[str] | None = None,
    ablation_sweep: bool = False,
    rollout: bool = False,
    logit_lens: bool = False,
    compare: Text = None,
    json: bool = False,
) -> int:
    """Show the attention inside a model, and change it: ablate heads, scale scores, mask edges.

    For a text, an image or an audio file, print the type of each head and the attention map of the head with the
    clearest type (if no type says more than uniform, of the least uniform head). You do not need to change the model's
    code.

    Examples:

        qkv look qkv:shakespeare "To be, or not to be"           # a bundled model
        qkv look runs/gpt-text-1 "To be, or" --layer 1 --head 2  # one head
        qkv look gpt2 "The cat sat on the mat" --html look.html  # all heads
        qkv look my-vit/ photo.png --png overlay.png             # over an image
        qkv look my-translator/ "Ein Mann" --target "A man"      # an encoder–decoder
        qkv look gpt2 "Paris is in" --ablate 5.1 --ablate 6.9    # without two heads
        qkv look gpt2 "Paris is in" --ablation-sweep             # which heads matter
        qkv look gpt2 "Paris is in" --compare "London is in"     # two inputs

    Parameters
    ----------
    checkpoint
        A run folder, a model folder (qkv's or Hugging Face's), a llama2.c file, a hub id, or a bundled model such as
        qkv:digits. Omit it to list the bundled models.
    inputs
        The input: a text, an image or audio file, or, for a model without a tokenizer, token ids such as "12 7 99".
    target
        The target text, for an encoder–decoder. Default: the model generates one.
    layer
        The layer to show, by its index from 0 or its name. Default: the layer of the head with the clearest type.
    head
        The head to show, by its index from 0. Default: the head with the clearest type.
    query
        The query token, by its index; for an image also "class" or a patch as "row,column". Default: the last token.
    html
        Write a self-contained HTML page that shows all heads.
    full
        With --html: store all queries and keys, so that the page can show every weight of a long text. The file is
        larger.
    png
        Write a PNG file: all heads, the head chosen by --layer and --head, attention over the input image, or the
        ablation sweep.
    ablate
        Ablate heads, such as 5.1 (layer.head) or 5.1,6.9, and measure the effect on the prediction. Can be repeated.
    scale
        Change the scale of the scores and measure the effect: 0.5 sets it in all layers, x2 doubles it, 3=x2 doubles it
        in layer 3, 3.1=0 sets it to 0 in head 1 of layer 3.
    mask_edge
        Mask an edge: 3.1:5:2 so that query 5 of head 3.1 may not attend to key 2; 3:5:2 for all heads of layer 3.
    ablation_sweep
        Ablate each head in turn and print which heads matter.
    rollout
        Print the attention rollout: how much each input token contributes to the output, through all layers.
    logit_lens
        Print the prediction after each layer (the logit lens).
    compare
        Compare head by head with another checkpoint or another input.
    json
        Print everything as JSON.
    """
    from qkv._files import check_writable
    from qkv.interp.inputs import prepare_input
    from qkv.interp.look import LookRequest, run_look
    from qkv.interp.look_report import terminal_lines

    if checkpoint is None:
        return print_bundled_models("look", json)
    if full and html is None:
        raise ValueError("--full needs --html: it embeds queries and keys in the page")
    if png is not None and png.suffix.lower() != ".png":
        raise ValueError(f"--png writes a PNG image: name a file that ends in .png, got {png}")
    for file in filter(None, (html, png)):
        check_writable(file)
    if len(inputs) > 1 and all(Path(name).is_file() for name in inputs):
        raise ValueError(f"qkv look takes one input, got {len(inputs)} files; --compare takes a second one")
    request = LookRequest(
        input=" ".join(inputs) or None,
        target=target,
        layer=layer,
        head=head,
        query=query,
        ablate=tuple(ablate or ()),
        scale=tuple(scale or ()),
        mask_edges=tuple(mask_edge or ()),
        ablation_sweep=ablation_sweep,
        rollout=rollout,
        logit_lens=logit_lens,
        compare=compare,
    )
    with err().status("loading the checkpoint") as status:
        prepared = prepare_input(checkpoint, request.input, target=target)
        result = run_look(prepared, request, note=status.update)
        for note in (*prepared.notes, *result.notes):
            err().print(note, style="dim", markup=False)
        _write_files(result, html, full, png, status.update)
    if json:
        print_json(result.to_json())
    elif not (html or png) or request.has_analyses:
        color = out().color_system is not None and not out().no_color
        for line in terminal_lines(result, width=out().width, color=color):
            out().print(line, soft_wrap=True)
    return 0


def _write_files(result: "LookResult", html: Path | None, full: bool, png: Path | None, note: Any) -> None:
    """Write the files that were asked for, each whole or not at all."""
    from qkv._files import write_atomic
    from qkv.interp.look_report import draw_png, make_result_scene
    from qkv.interp.viewer import render_html

    if html is not None:
        note("writing the page")
        text = render_html(make_result_scene(result), full=full)
        write_atomic(html, text)
        err().print(f"wrote {html}, {len(text.encode()) / 1e6:.1f} MB", style="dim", markup=False)
    if png is not None:
        note("drawing")
        write_atomic(png, draw_png(result))
        err().print(f"wrote {png}", style="dim", markup=False)
