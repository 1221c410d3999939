"""Bytes that become tensors: checkpoints, messages, images."""

TARGETS: dict = {}
