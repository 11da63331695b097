"""Damaged and hostile input: what is changed in valid files, and who reads them."""
