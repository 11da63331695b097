"""Contrastive losses over all negatives of the data set, from small batches and kept state."""
