"""Drone navigation among static and moving obstacles."""

from fledge.envs.navigation.config import NavigationConfig
from fledge.envs.navigation.dump import replay_dump
from fledge.envs.navigation.env import NavigationEnv
from fledge.envs.navigation.model import Outcome

__all__ = ["NavigationConfig", "NavigationEnv", "Outcome", "replay_dump"]
