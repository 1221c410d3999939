"""``python -m parley``, which is also what torchrun starts."""

from parley.cli import main

main()
