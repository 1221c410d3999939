"""Parley: peers with different, private data train one model together, with no server."""

__version__ = "0.1.0"
