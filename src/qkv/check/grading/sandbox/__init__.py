"""The submission's side of the sandbox. It needs torch and safetensors and imports nothing else of qkv.

A fresh interpreter loads it as the top-level package `sandbox`, so a submission finds no implementation of attention,
no rubric and no seed in its process.
"""
