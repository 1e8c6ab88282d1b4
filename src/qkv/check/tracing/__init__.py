"""Tracing of operations: records what runs inside a module and reads scale, softmax, mask, heads and RoPE off it."""
