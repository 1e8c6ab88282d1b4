"""`python -m qkv` is the `qkv` command."""

from qkv.cli.main import main

main()
