"""What computes: ONNX Runtime, compiled code, torch."""
