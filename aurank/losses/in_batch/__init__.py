"""Contrastive losses that see the negatives of one batch."""
