"""Carrying out an experiment."""
