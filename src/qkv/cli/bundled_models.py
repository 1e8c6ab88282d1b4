"""The list of bundled models, for commands that are called without a checkpoint."""

from rich.table import Table

from qkv.cli.console import out, print_json

EXAMPLES = {"look": 'qkv look qkv:shakespeare "To be, or not to be"', "use": 'qkv use qkv:shakespeare "To be, or"'}


def print_bundled_models(command: str, json: bool) -> int:
    """Print the bundled models and what they do, and an example of the command."""
    from qkv.checkpoints import bundled

    models = {name: bundled.read_card(name)["summary"] for name in bundled.names()}
    if json:
        print_json([{"name": name, "summary": summary} for name, summary in models.items()])
        return 0
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, summary in models.items():
        table.add_row(name, summary)
    out().print("Bundled models:")
    out().print(table)
    out().print(
        f"Try: {EXAMPLES[command]}. You can also use your own runs, model folders and Hugging Face hub ids.",
        markup=False,
    )
    return 0
