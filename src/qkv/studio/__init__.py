"""The local page: a server on this machine, and the built page it hands out."""
