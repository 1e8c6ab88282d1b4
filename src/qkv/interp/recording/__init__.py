"""Recording attention inside any PyTorch model: fused kernels, torch.nn modules and hand-written code."""
