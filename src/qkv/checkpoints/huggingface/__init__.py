"""Hugging Face checkpoints. To add a family, see CONTRIBUTING.md."""
