"""List-wise losses: surrogates of average precision, Recall@k and AUROC over the references of a query."""
