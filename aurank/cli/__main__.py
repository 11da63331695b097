"""python -m aurank.cli: the command line."""

from aurank.cli import main

main()
