"""Reading runs, and showing them as tables, curves and pages."""
