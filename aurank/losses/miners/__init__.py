"""Miners of aurank's own; what they return narrows the pairs that a loss sees, so every loss takes every miner."""
