"""Losses around other losses: a memory, a weighted sum, PML's losses."""
