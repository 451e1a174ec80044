"""Inputs and runs of the fused attention for its tests."""

from functools import partial

import pytest
import torch

from rfa import robust_filter_attention
from rfa.benchmarks.kernels.cases import rfa_inputs

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")

fused = partial(robust_filter_attention, impl="triton")


def small(batch=1, length=9, heads=2, complex_dims=8, **options):
    return rfa_inputs(batch, length, heads, complex_dims, **{"dtype": torch.float32, "device": DEVICE} | options)


def transposed_copy(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def starts_of(lengths):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)
