"""Save and restore a Gymnasium env, as far as possible: plain numbers and arrays, random generators, MuJoCo's state."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from fledge.core.errors import ConfigError

Array = np.ndarray[Any, Any]


def make_one(env_id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return a new env; raise ConfigError if Gymnasium does not know the ID, or the env cannot be made."""
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **options)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise ConfigError(f"gym:{env_id} cannot be made: {str(error).strip().splitlines()[0]}") from error


def layers(env: Any) -> Iterator[Any]:
    """Yield an env's wrappers, the outermost first, and then the env itself."""
    yield env
    if isinstance(env, gymnasium.Wrapper):
        yield from layers(env.env)


def take_out(env: Any) -> list[dict[str, Any]]:
    """Return a copy of the plain attributes of the env and its wrappers: numbers, arrays, generators, MuJoCo's state."""
    return [
        {name: value for name, found in vars(layer).items() if (value := _plain(layer, name, found)) is not None}
        for layer in layers(env)
    ]


def _plain(layer: Any, name: str, value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return {"generator": _to_text(value.bit_generator.state)}
    if type(value).__name__ == "MjData":
        return {"mujoco": torch.from_numpy(_mujoco_state(layer.model, value))}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(value.copy())
    if isinstance(value, bool | int | float) or value is None:
        return {"value": value}
    if isinstance(value, np.floating | np.integer):
        return {"number": torch.tensor(value.item(), dtype=torch.float64), "kind": value.dtype.name}
    if isinstance(value, tuple | list) and all(isinstance(x, float | int) for x in value):
        return {"sequence": list(value), "tuple": isinstance(value, tuple)}
    return None


def put_back(env: Any, saved: list[dict[str, Any]]) -> None:
    """Restore the attributes that `take_out` returned."""
    for layer, values in zip(layers(env), saved, strict=True):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                _put_array(layer, name, value.numpy())
            elif "generator" in value:
                getattr(layer, name).bit_generator.state = _from_text(value["generator"])
            elif "mujoco" in value:
                _set_mujoco_state(layer.model, getattr(layer, name), value["mujoco"].numpy())
            elif "number" in value:
                setattr(layer, name, np.dtype(value["kind"]).type(value["number"].item()))
            elif "sequence" in value:
                setattr(layer, name, tuple(value["sequence"]) if value["tuple"] else list(value["sequence"]))
            else:
                setattr(layer, name, value["value"])


def _put_array(layer: Any, name: str, value: Array) -> None:
    found: Any = getattr(layer, name, None)
    fits = isinstance(found, np.ndarray) and (found.shape, found.dtype) == (value.shape, value.dtype)
    if fits and found.flags.writeable:
        found[...] = value  # other objects may hold the same array
    else:
        setattr(layer, name, value.copy())


def _to_text(state: Any) -> Any:
    """Return a generator's state with its 128-bit integers as text."""
    if isinstance(state, dict):
        return {k: _to_text(v) for k, v in state.items()}
    return {"int": str(state)} if isinstance(state, int) else state


def _from_text(state: Any) -> Any:
    if isinstance(state, dict):
        return int(state["int"]) if set(state) == {"int"} else {k: _from_text(v) for k, v in state.items()}
    return state


def _mujoco_state(model: Any, data: Any) -> Array:
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.zeros(mujoco.mj_stateSize(model, spec))
    mujoco.mj_getState(model, data, state, spec)
    return state


def _set_mujoco_state(model: Any, data: Any, state: Array) -> None:
    import mujoco

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(model, data, state, spec)
    mujoco.mj_forward(model, data)
    mujoco.mj_setState(model, data, state, spec)  # mj_forward changes the solver's warm start


@functools.cache
def can_be_put_back(env_id: str, options: tuple[tuple[str, str], ...]) -> bool:
    """Test on two new envs whether one that gets the state of the other continues bit for bit; return the result."""
    settings = {k: ast.literal_eval(v) for k, v in options}
    one, other = make_one(env_id, settings), make_one(env_id, settings)
    try:
        one.action_space.seed(0)
        actions = [one.action_space.sample() for _ in range(300)]
        one.reset(seed=1)
        other.reset(seed=2)
        _play(one, actions[:20])
        saved = take_out(one)
        expected = _play(one, actions[20:])
        put_back(other, saved)
        return all(_equal(a, b) for a, b in zip(expected, _play(other, actions[20:]), strict=True))
    except Exception:
        return False  # the env cannot be tested
    finally:
        one.close()
        other.close()


def _play(env: Any, actions: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen += [obs, reward, terminated, truncated]
        if terminated or truncated:
            seen.append(env.reset()[0])
    return seen


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
