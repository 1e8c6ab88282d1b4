"""Memory of attention over long sequences: linear in the length, not quadratic."""

import os
import subprocess
import sys

# 32,768² booleans alone are 1,024 MB. Each line printed: by how many MB the call raised the peak.
SCRIPT = """
import resource, torch
from qkv import attention, masks

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

torch.set_num_threads(1)
n = 32768
q = torch.randn(1, 1, n, 4)
attention(q[:, :, :600], q[:, :, :600], q[:, :, :600], mask=masks.sliding_window(600, 600, 9, 0))
window = masks.sliding_window(n, n, 256, 0)
for values, options in ((q, {"causal": True}), (q[..., :2], {"causal": True}), (q, {"mask": window})):
    before = peak()
    out = attention(q, q, values, **options)
    assert out.isfinite().all()
    print(peak() - before)
"""


def test_attention_over_32768_tokens_needs_no_quadratic_memory():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True)
    causal, narrow_values, window = (float(line) for line in run.stdout.split())
    assert max(causal, narrow_values, window) < 400
