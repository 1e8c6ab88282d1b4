"""The playground's own rooms: what is given, its numbers, its exact working, and how to have the same elsewhere."""
