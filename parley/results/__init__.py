"""Reading runs, and showing them as tables, curves and pages."""

PICTURE_FORMATS = ("png", "svg", "pdf")
"""Here, so that commands can check a file's name without loading what draws."""
