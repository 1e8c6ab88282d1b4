"""The checks, one file per family; `qkv.check.registry` lists them all."""
