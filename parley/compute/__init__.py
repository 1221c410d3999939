"""Gradients of many (model, batch) pairs at once."""
