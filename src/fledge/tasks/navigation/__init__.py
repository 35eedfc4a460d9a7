"""Drone navigation among static and moving obstacles."""

from fledge.tasks.navigation.config import NavigationConfig
from fledge.tasks.navigation.dump import replay_dump
from fledge.tasks.navigation.env import NavigationEnv
from fledge.tasks.navigation.structs import Outcome

__all__ = ["NavigationConfig", "NavigationEnv", "Outcome", "replay_dump"]
