"""Studies: what to run, and what was published, in one file each; and the engine that runs them.

The NGC paper (Aketi, Kodge, Roy, "Neighborhood Gradient Clustering") is the first of them.

studies/      the files that come with Parley
study.py      what such a file may hold
cells.py      every cell of a study's tables as an experiment
costs.py      how long they would take
campaign.py   running them: resumable, in shards, skipping what is done; packing
tuned.py      the same for studies that tune every method first
collect.py    all runs below a folder, as results
claims.py     differences seed by seed, with intervals
page.py       our results next to the published ones: tables and pages
pictures.py   the same, as pictures
resources.py  the paper's communication and memory, computed and measured
theory/       the paper's Theorem 1 and its lemmas; no study, since nothing there is a run
"""
