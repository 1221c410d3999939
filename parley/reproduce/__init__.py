"""The NGC paper's tables and figures as experiments by name, and what came out beside it.

Aketi, Kodge, Roy, "Neighborhood Gradient Clustering". Its figures are in the CSV files here.

presets.py    every cell and every curve as an experiment
costs.py      how long they take on this machine
campaign.py   running them: resumable, skipping what is done
report.py     ours beside the paper's
resources.py  communication and memory, computed and measured, against the printed tables
theory.py     Theorem 1's step sizes; the lemmas and the rate on quadratics
cli.py        the ``parley reproduce`` command
"""
