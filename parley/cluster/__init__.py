"""Starting the processes of a run, and keeping them together."""
