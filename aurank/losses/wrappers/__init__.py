"""Losses around other losses: a memory, a weighted sum, PML's and lightly's losses."""
