"""Side-by-side measurements: what this machine does, and how fast."""
