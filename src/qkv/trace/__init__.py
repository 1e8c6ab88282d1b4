"""What runs inside a model: recorded, changed and drawn."""

from qkv.trace.change import change
from qkv.trace.record import record
from qkv.trace.trace import Trace

__all__ = ["Trace", "change", "record"]
