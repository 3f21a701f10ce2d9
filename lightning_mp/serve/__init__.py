"""A bundle to scores over HTTP, with NumPy and ONNX Runtime alone."""
