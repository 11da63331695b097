"""Configurations: YAML and dotted overrides in, one checked and frozen ``Config`` out, or all mistakes at once."""

from aurank.config.components import Choices
from aurank.config.load import config_difference, dump_config, load_config, shipped_configs
from aurank.config.messages import ConfigError
from aurank.config.schema import Component, Config, DataConfig, LossTerm, ModelConfig, known_keys

__all__ = [
    "Choices",
    "Component",
    "Config",
    "ConfigError",
    "DataConfig",
    "LossTerm",
    "ModelConfig",
    "config_difference",
    "dump_config",
    "known_keys",
    "load_config",
    "shipped_configs",
]
