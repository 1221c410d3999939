"""Charts: one description each, drawn as SVG for pages and as SVG, PNG or PDF files.

    Chart (chart.py) → shapes (draw.py) → SVG (svg.py), or a file (picture.py)

docs/charts.md shows how to add one.
"""
