"""midrangeRL's TensorEnv: `from fledge.compat.tensor_env import TensorEnv`. (`fledge.TensorEnv` is our env contract.)"""

from fledge.compat.midrange.env import MidrangeEnv


class TensorEnv(MidrangeEnv):
    """Duels as midrangeRL's users know them: `TensorEnv(config, num_envs=32, device="cpu")`."""
