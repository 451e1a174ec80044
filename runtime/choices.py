"""Choices that callers make by name."""

from __future__ import annotations

from typing import Literal

# How a model has what came before: in a state of constant size, or as all of it.
Mode = Literal["recurrent", "attention"]
# What computes a model on a CPU; "auto" is compiled code where that can run the bundle, else ONNX Runtime.
RuntimeName = Literal["auto", "compiled", "onnx"]
MergeMethod = Literal["precision", "covariance_intersection"]
