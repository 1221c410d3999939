"""Side-by-side measurements. `python -m benchmarks.steps --help` is where to start."""
