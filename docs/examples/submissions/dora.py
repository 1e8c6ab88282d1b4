"""A submission that tries to be clever: it prints its own grade, and leaves."""

import os


class CausalSelfAttention:
    def __init__(self, config):
        os.write(1, b"dora,1,2,1,1,1,1,1,1,1,10")
        os._exit(0)
