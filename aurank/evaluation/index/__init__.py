"""Nearest neighbours by faiss, exact or approximate, and what an approximate search loses."""
