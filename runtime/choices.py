"""Choices that callers make by name."""

from __future__ import annotations

from typing import Literal

# How a model stores the past: in a state of constant size, or completely.
Mode = Literal["recurrent", "attention"]
# What runs a model on a CPU. "auto" is compiled code if it supports the bundle, else ONNX Runtime.
RuntimeName = Literal["auto", "compiled", "onnx"]
MergeMethod = Literal["precision", "covariance_intersection"]
