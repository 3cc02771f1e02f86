"""TUNER_DATA as the optimizers follow it: its first candidate (`spec/nodes.md` §1.4, §1.5)."""

import json
from collections.abc import Mapping
from typing import Any

from ..autotuner.tuner_data import candidates_of, config_of_rank


def followed(tuner_data: object) -> dict[str, Any] | None:
    """The first configuration, with what all candidates share; None if nothing was tuned.

    Raises:
        RecipeError: it holds no configuration.
    """
    return config_of_rank(tuner_data) if candidates_of(tuner_data) else None


def told(config: Mapping[str, Any]) -> str:
    """A configuration as JSON, for the node's widgets on screen."""
    return json.dumps(dict(config), default=str)
