"""Attention in JAX, and its adapter: JAX computes in float32 unless jax_enable_x64 is set."""

import jax
import jax.numpy as jnp

ARRAYS, DTYPE = "numpy", "float32"


@jax.jit
def attention(q, k, v):
    """(b, h, t, d), causal."""
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    past = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool), scores.shape[-1] - scores.shape[-2])
    return jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1) @ v


def call(target, q, k, v):
    return target(q, k, v)
