"""What runs on the submission's side: a package of its own, which needs torch and safetensors and nothing of qkv.

It is loaded by a fresh interpreter as `inside`, so that no submission finds an implementation of attention, a rubric or
a seed in its process.
"""
