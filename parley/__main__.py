"""``python -m parley``, which is also what torchrun starts."""

from parley.cli.app import main

main()
