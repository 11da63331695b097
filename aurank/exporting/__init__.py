"""Trained models as files that others run: graphs, programs, weights, folders of timm; and what is said of them."""
