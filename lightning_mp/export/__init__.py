"""A trained module to a checked ONNX bundle."""
