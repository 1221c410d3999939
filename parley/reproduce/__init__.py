"""The NGC paper's tables and figures as named experiments, and results next to the paper's.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering". Its figures are in the CSV files here.

presets.py    every cell and every curve as an experiment
costs.py      how long they would take on this machine
campaign.py   running them: resumable, skipping what is done
cell.py       the cell of the paper's tables that a run corresponds to, if any
collect.py    all runs below a folder, as results
claims.py     differences seed by seed, with intervals
report.py     our results next to the paper's, as tables
pictures.py   the same, as pictures
resources.py  communication and memory, computed and measured, against the printed tables
theory/       Theorem 1's step sizes; the lemmas and the rate on quadratics
"""
