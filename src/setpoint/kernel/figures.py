"""Figures of the field that decisions and reports rest on: what a waiting session holds, how often to checkpoint. Pure.

Exact integers where the quantity is a count of bytes; worked values are in tests/kernel/test_figures.py.
"""

from __future__ import annotations

import math


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes of key and value a model keeps of one token: two vectors a layer and key-value head."""
    sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim, "bytes_per_value": bytes_per_value}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it is at least 1")
    return 2 * layers * kv_heads * head_dim * bytes_per_value


def kv_bytes(tokens: int, layers: int, kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes of model cache that a session of ``tokens`` holds, also while it waits for a tool (tier 1)."""
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}; it is at least 0")
    return tokens * kv_bytes_per_token(layers, kv_heads, head_dim, bytes_per_value)


def checkpoint_cadence_s(cost_s: float, mtbf_s: float) -> float:
    """The interval at which what checkpoints cost equals what a crash costs to redo: sqrt(2 * cost * mtbf).

    ``cost_s`` is the time of one checkpoint, ``mtbf_s`` the mean time between crashes.
    """
    if not (cost_s > 0 and mtbf_s > 0 and math.isfinite(cost_s) and math.isfinite(mtbf_s)):
        raise ValueError(f"cost {cost_s} s and mean time between crashes {mtbf_s} s must be above 0 and finite")
    return math.sqrt(2 * cost_s * mtbf_s)
