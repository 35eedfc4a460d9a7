"""`fledge.TensorEnv` for both who mean it: the contract of our envs, and midrangeRL's env.

class MyEnv(fledge.TensorEnv): ...            the contract (envs/base.py), to be filled in
isinstance(env, fledge.TensorEnv)             true of all our envs
fledge.TensorEnv(config, num_envs=32)         the contract cannot be called, so this is the env of that name elsewhere
"""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

from fledge.envs import base


class Called(ABCMeta):
    """Calls of the contract itself make the other env; everything else is as of the contract."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if cls is TensorEnv:
            from fledge.compat.midrange.env import MidrangeEnv

            return MidrangeEnv(*args, **options)
        return super().__call__(*args, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return (base.TensorEnv if cls is TensorEnv else cls) in subclass.__mro__


class TensorEnv(base.TensorEnv, metaclass=Called):
    __doc__ = base.TensorEnv.__doc__
