"""Needs a key when it is imported."""

import os

from rh_env import SayTaskset, SayTasksetConfig

__all__ = ["KeyTaskset"]

KEY = os.environ["RH_ENV_KEY"]


class KeyTaskset(SayTaskset):
    pass
