"""Models for edge NPUs: ONNX in, optimised, quantised and packed, as a packhorse app."""

from packhorse_converter.app import app, convert

__all__ = ["app", "convert"]
