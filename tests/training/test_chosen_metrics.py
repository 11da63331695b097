"""Metrics chosen in a configuration reach the evaluation, and unknown ones are refused with it."""

import pytest

from aurank.embedding.evaluation_options import evaluation_options, two_way_options
from aurank.errors import UserError
from aurank.training.components import read_config


def test_metrics_are_chosen_in_a_configuration() -> None:
    config = read_config("digits/soprc", ["evaluate.metrics=[mrr@10,coverage@5]"])
    assert evaluation_options(config)["metrics"] == ("mauprc", "mrr@10", "coverage@5")
    assert "metrics" not in two_way_options(config)
    assert "metrics" not in evaluation_options(read_config("digits/soprc"))
    with pytest.raises(UserError, match=r"evaluate\.metrics: unknown metric 'mr@10', .*did you mean 'mrr@10'"):
        read_config("digits/soprc", ["evaluate.metrics=[mr@10]"])
