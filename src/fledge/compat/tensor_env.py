"""`fledge.TensorEnv`: the base class of batched envs, which can also be called like midrangeRL's TensorEnv.

class MyEnv(fledge.TensorEnv): ...            implements the contract of `fledge.envs.base.TensorEnv`
isinstance(env, fledge.TensorEnv)             true for every env of fledge
fledge.TensorEnv(config, num_envs=32)         returns a MidrangeEnv: the abstract class itself has no instances
"""

from __future__ import annotations

from typing import Any

from fledge.envs import base


class TensorEnv(base.TensorEnv):
    __doc__ = base.TensorEnv.__doc__

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Create an env of a subclass, or a `MidrangeEnv` for a call of this abstract class."""
        if cls is not TensorEnv:
            return super().__new__(cls)
        from fledge.compat.midrange.env import MidrangeEnv

        return MidrangeEnv(*args, **options)

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return base.TensorEnv in subclass.__mro__ if cls is TensorEnv else NotImplemented
