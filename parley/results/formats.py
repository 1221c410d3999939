"""Files that pictures can be saved as; apart from the drawing, which takes time to load."""

ENDINGS = ("png", "svg", "pdf")
