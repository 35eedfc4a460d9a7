"""Fly a policy from a deployment folder, which `fledge deploy POLICY FOLDER` writes. Needs NumPy and onnxruntime.

    deployment = fledge_runtime.load("folder")     # checks hashes, contract and a golden sequence; raises ContractError
    pilot = deployment.pilot()
    pilot.reset(position_w, goal_w)
    command = pilot.step(fledge_runtime.Inputs(time_s, position_w, velocity_w, quaternion_wxyz, points_w=points))

A policy of another kind than velocity commands from a point cloud: `deployment.policy()` maps observations to actions.
"""

from importlib import import_module

__version__ = "0.3.0.dev0"

_HOMES = {
    "load": "pilot",
    "Deployment": "pilot",
    "Pilot": "pilot",
    "Inputs": "inputs",
    "Command": "inputs",
    "Mount": "inputs",
    "Camera": "inputs",
    "Policy": "policy",
    "Contract": "contract",
    "ContractError": "errors",
    "InputError": "errors",
    "Planner": "planner",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge_runtime' has no attribute {name!r}")
    return getattr(import_module("fledge_runtime." + _HOMES[name]), name)
