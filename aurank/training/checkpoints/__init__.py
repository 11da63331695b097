"""The files of a run: who writes them, what they hold, going on from them."""
