"""The verbs that algorithms are written in."""
