"""The second tier: what runs inside an implementation, recorded and read."""

from qkv.check.inside.seen import Projection, Recording, Seen
from qkv.check.inside.watch import watch

__all__ = ["Projection", "Recording", "Seen", "watch"]
