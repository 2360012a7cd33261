"""ONNX files as workloads. Needs the extra `onnx`."""
