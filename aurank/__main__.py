"""``python -m aurank`` is the ``aurank`` command."""

from aurank.cli import main

main()
