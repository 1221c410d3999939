"""``python -m parley``, which is also what torchrun starts."""

from parley.cli.main import main

main()
