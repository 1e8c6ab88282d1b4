"""Hugging Face checkpoints. To add a family, write a file like llama.py and list it in folder.FAMILIES."""
