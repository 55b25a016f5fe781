"""The policy of a run as an ONNX file: `python -m a3c_exp.export`."""
