"""`qkv completion`: the script by which a shell completes commands and options."""

from typing import Literal

from qkv.cli.console import print_json


def completion(shell: Literal["bash", "zsh", "fish"], /, *, json: bool = False) -> int:
    """Print a completion script for commands, options and values.

    Examples:

        mkdir -p ~/.local/share/bash-completion/completions
        qkv completion bash > ~/.local/share/bash-completion/completions/qkv
        qkv completion zsh > ~/.zfunc/_qkv
        qkv completion fish > ~/.config/fish/completions/qkv.fish

    Open a new shell afterwards. For zsh, add `fpath+=~/.zfunc` to ~/.zshrc before compinit.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    json
        Print the script as JSON.
    """
    from qkv.cli.main import make_app

    script = make_app().generate_completion(prog_name="qkv", shell=shell)
    if json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)
    return 0
