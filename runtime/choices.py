"""Literal types of the options that callers can choose: the decoding mode, the runtime and the method of merging
states."""

from __future__ import annotations

from typing import Literal

# How a model represents the past: as a state of constant size, or as all earlier observations or tokens.
Mode = Literal["recurrent", "attention"]
# Implementation that runs a model on a CPU. "auto" chooses compiled code if it supports the bundle, and otherwise ONNX
# Runtime.
RuntimeName = Literal["auto", "compiled", "onnx"]
MergeMethod = Literal["precision", "covariance_intersection"]
