"""What this machine can do at best, on torch's threads."""

import torch

_ops = torch.ops.attnops


def copy_bandwidth(seconds: float = 1.0) -> float:
    """Bytes read plus bytes written in a second by the best way to copy memory."""
    return _ops.copy_bandwidth(seconds)


def fma_peak(seconds: float = 0.5) -> float:
    """float32 operations in a second, on the widest SIMD target of the CPU."""
    return _ops.fma_peak(seconds)


def bf16_peak(seconds: float = 0.5) -> float:
    """bfloat16 operations in a second, summed in float32; 0 if the CPU has no instructions."""
    return _ops.bf16_peak(seconds)
