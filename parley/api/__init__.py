"""Parley from Python: the functions that `import parley` provides."""
