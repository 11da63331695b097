"""The exact ranks of every positive: who is positive, how scores are counted, in which tiles, on which device."""
