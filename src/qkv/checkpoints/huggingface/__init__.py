"""Hugging Face checkpoints: one file per family (GPT-2, Llama, BERT, ViT, BART), read and written by `folder`."""
