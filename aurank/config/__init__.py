"""Configurations: YAML and dotted overrides in, one checked and frozen ``Config`` out, every mistake told at once.

OmegaConf is not used: a configuration from anywhere must never resolve interpolations such as ``${oc.env:HOME}``, and
without them it would spare only the few lines that read overrides.
"""

from aurank.config.components import Choices
from aurank.config.load import config_difference, dump_config, load_config, shipped_configs
from aurank.config.messages import ConfigError
from aurank.config.schema import (
    Component,
    Config,
    DataConfig,
    DataSection,
    EvaluateConfig,
    Key,
    ModelConfig,
    OptimConfig,
    SamplerConfig,
    TrainConfig,
    known_keys,
)

__all__ = [
    "Choices",
    "Component",
    "Config",
    "ConfigError",
    "DataConfig",
    "DataSection",
    "EvaluateConfig",
    "Key",
    "ModelConfig",
    "OptimConfig",
    "SamplerConfig",
    "TrainConfig",
    "config_difference",
    "dump_config",
    "known_keys",
    "load_config",
    "shipped_configs",
]
