"""Side-by-side measurements: what this machine does, and how fast; ours beside the peers, in one run."""
