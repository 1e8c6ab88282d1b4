"""`qkv look`: the attention inside a checkpoint, on an input of yours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.checkpoint import trained
from qkv.cli.console import err, out, print_json

if TYPE_CHECKING:
    from qkv.interp import Subject

Words = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


def look(
    checkpoint: str,
    /,
    *words: str,
    target: Words = None,
    layer: str | None = None,
    head: int | None = None,
    query: str | None = None,
    html: Path | None = None,
    full: bool = False,
    png: Path | None = None,
    silence: list[str] | None = None,
    beta: list[str] | None = None,
    cut: list[str] | None = None,
    sweep: bool = False,
    rollout: bool = False,
    lens: bool = False,
    against: Words = None,
    json: bool = False,
) -> int:
    """The attention inside a model, as it is: seen, drawn, changed.

    A checkpoint and a text (or the file of a picture) give the kinds of heads that were found and a map of the most
    telling one. The model runs once, as it always does; its weights are computed from what was recorded.

    Examples:

        qkv look qkv:shakespeare "To be, or not to be"           # a model that comes with qkv
        qkv look runs/gpt-text-1 "To be, or" --layer 1 --head 2  # your own, one head of it
        qkv look gpt2 "The cat sat on the mat" --html look.html  # all heads in one page
        qkv look my-vit/ photo.png --png overlay.png             # attention over a picture
        qkv look my-translator/ "Ein Mann" --target "A man"      # an encoder–decoder
        qkv look gpt2 "Paris is in" --silence 5.1 --silence 6.9  # without two heads
        qkv look gpt2 "Paris is in" --sweep                      # which heads matter
        qkv look gpt2 "Paris is in" --against "London is in"     # two inputs, head by head

    Parameters
    ----------
    checkpoint
        A run's folder, a model's folder (qkv's or Hugging Face's), a llama2.c file, a hub id, or a model that comes
        with qkv, such as qkv:digits.
    words
        A text; or the file of a picture or a recording; or, for a model without a tokenizer, the numbers of its
        tokens: "12 7 99".
    target
        For an encoder–decoder, what it wrote; otherwise it writes itself.
    layer
        The layer to show, by its place from 0 or by its name.
    head
        The head to show.
    query
        The token that is asked, by its place; of a picture also "class" or a patch, "row,column".
    html
        Write one page that needs no network: all heads, one head large, token lines, search, light and dark.
    full
        With --html: embed queries and keys, so that the page computes every weight of a long text.
    png
        Write a picture: all heads, or the one chosen by --layer and --head, or attention over the picture.
    silence
        Silence a head, layer.head, and say what that does to the prediction. May be given several times.
    beta
        Another inverse temperature and what it does: 0.5 for all layers, x2 for twice their own, 3=x2 for layer 3,
        3.1=0 for one head.
    cut
        Cut an edge: 3.1:5:2 for head 3.1, whose query 5 may not attend to key 2; 3:5:2 for all heads of layer 3.
    sweep
        Silence each head in turn: which heads matter.
    rollout
        Attention through all layers together.
    lens
        What the model would answer after each layer (the logit lens).
    against
        Compare, head by head, with another checkpoint or another input.
    json
        Print everything as JSON.
    """
    from qkv._files import writable
    from qkv.interp.session import Asked, run

    if full and html is None:
        raise ValueError("--full goes with --html: it embeds queries and keys in the page")
    for file in filter(None, (html, png)):
        writable(file)
    given, changes = " ".join(words) or None, (tuple(silence or ()), tuple(beta or ()), tuple(cut or ()))
    asked = Asked(given, target, layer, head, query, *changes, sweep, rollout, lens, against)
    with err().status("reading the checkpoint") as status:
        seen = run(_opened(checkpoint, given, target), asked, note=status.update)
        for note in seen.subject.notes:
            err().print(note, style="dim", markup=False)
        _write(seen, html, full, png, status.update)
    if json:
        print_json(seen.to_json())
    elif not (html or png) or asked.questions:
        for line in seen.lines(width=out().width, colour=out().color_system is not None and not out().no_color):
            out().print(line, soft_wrap=True)
    return 0


def _opened(checkpoint: str, given: str | None, target: str | None) -> "Subject":
    from qkv.interp import subject

    trained(checkpoint)  # a run that is not finished has nothing to look into, and is told so
    return subject.open(checkpoint, given, target=target)


def _write(seen: Any, html: Path | None, full: bool, png: Path | None, note: Any) -> None:
    """The files that were asked for, each whole or not at all."""
    from qkv._files import write_whole

    if html is not None:
        note("writing the page")
        from qkv.interp.viewer import html as page

        text = page(seen.scene(), full=full)
        write_whole(html, text)
        err().print(f"wrote {html}, {len(text.encode()) / 1e6:.1f} MB", style="dim", markup=False)
    if png is not None:
        note("drawing")
        write_whole(png, seen.png())
        err().print(f"wrote {png}", style="dim", markup=False)
