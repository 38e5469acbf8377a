"""`python -m labkit.cli`, where the command `labkit` is not on the path."""

from labkit.cli import main

main()
