"""``parley dash``: a local page that follows runs as they go on.

series.py   the records of a run as they come, as series to draw
runs.py     which runs are there, and how each is doing
graph.py    where agents are drawn, and who talks with whom
app.py      the web application: who may ask, what is answered, what is pushed
serve.py    a free port, the address, the browser, Ctrl-C
"""
