"""Training from a configuration, and loading what was trained."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.embedding.stored.trained_model import *
    from aurank.training.components import *
    from aurank.training.dry_run import *
    from aurank.training.gradient_cache import *
    from aurank.training.profile import *
    from aurank.training.run import *
else:
    NAMES = {
        ".embedding.stored.trained_model": ["load", "load_pairs"],
        "components": ["read_config"],
        "dry_run": ["rehearse"],
        "gradient_cache": ["GradientCache"],
        "profile": ["TrainingProfile", "profile_training"],
        "run": ["TrainResult", "train"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)
