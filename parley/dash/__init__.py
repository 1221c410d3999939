"""``parley dash``: a local page that follows runs live.

series.py   the records of a run as they arrive, as series to draw
runs.py     which runs there are, and the state of each
graph.py    where agents are drawn, and who talks to whom
app.py      the web application: access, responses and live updates
serve.py    a free port, the address, the browser, Ctrl-C
"""
