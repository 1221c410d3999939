"""The NGC paper's tables and figures as experiments by name, and what came out beside it.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering". Its figures are in the CSV files here.

presets.py    every cell and every curve as an experiment
costs.py      how long they take on this machine
campaign.py   running them: resumable, skipping what is done
cell.py       the cell of the paper's tables that a run is, if it is one
collect.py    all runs below a folder, as results
paired.py     differences seed by seed, with intervals
report.py     ours beside the paper's, as tables
pictures.py   the same as pictures
resources.py  communication and memory, computed and measured, against the printed tables
theory/       Theorem 1's step sizes; the lemmas and the rate on quadratics
"""
