"""Running an experiment."""
