"""Where batches come from: images, text, pairs, speech; tokenizers; downloads with checksums."""
