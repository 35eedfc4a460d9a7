"""The planner of one drone: computes the observation `plan`, and the tracked movers, from the other observations.

    planner = Planner(contract["planner"]["settings"])
    planner.reset()                                       # a flight begins
    obs.update(planner.step({**obs, "flown": action}))    # each decision; `action` is the one flown since the last

The C library in `native/` computes it, or, where there is none, NumPy, which gives the same numbers and takes longer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from fledge_runtime import native
from fledge_runtime.errors import ContractError, InputError
from fledge_runtime.planner_settings import CHOICES, ELEVATIONS, NUMBERS, read_settings

PLAN_WIDTH, MOVERS = 135, (1, 5, 10)
MOVERS_NAME = "dynamic_obstacle"
LARGEST = 1.0e6
TEXT = 256  # bytes of an error's text
NO_LIBRARY = (
    "The planner's C library is missing or does not fit this machine: install fledge-runtime where a C compiler is, or use "
    'engine="numpy", which is slower.'
)


class Planner:
    """Computes the plans of one drone.

    Args:
        settings: The policy's env settings by name, from its contract.
        engine: "c", "numpy", or "auto": C if its library was built, else NumPy.
    """

    def __init__(self, settings: Mapping[str, Any], engine: str = "auto", library: Any = None) -> None:
        self.settings = read_settings(settings)
        self.tracks = self.settings["movers_from"] == "lidar"
        rows = self.settings["lidar_rows"] or len(self.settings[ELEVATIONS])
        self.sizes = {"state": 8, "lidar": self.settings["lidar_azimuths"] * rows, "pose": 2}
        self.sizes.update({} if self.tracks else {MOVERS_NAME: MOVERS[1] * MOVERS[2]})
        self.sizes.update({"attitude": 2} if self.settings["lidar_tilts"] else {})
        self.command = np.zeros(3, np.float32)
        self.engine: Any
        if engine not in ("auto", "c", "numpy"):
            raise InputError(f'engine is {engine!r}, but must be "auto", "c" or "numpy".')
        library = library or (None if engine == "numpy" else native.load())
        if library is None and engine == "c":
            raise ContractError(NO_LIBRARY)
        if library is not None:
            self.name, self.engine = "c", NativePlanner(self.settings, library)
        else:
            from fledge_runtime.numpy_engine.engine import NumpyPlanner

            self.name, self.engine = "numpy", NumpyPlanner(self.settings)

    def reset(self) -> None:
        """Begin a flight: the next step starts with an empty memory."""
        self.engine.reset()

    def step(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return `plan` [135] and, if movers are tracked from the LiDAR, `dynamic_obstacle` [1, 5, 10]; `command` keeps the
        planner's command [3], m/s in the goal frame.

        Args:
            obs: Present observations by name: state, lidar, pose, and dynamic_obstacle or attitude if the policy's settings
                need them; and `flown`, the action [3] flown since the last step, or None for the planner's own command.

        Raises:
            InputError: if an observation is missing, has the wrong size or is not finite; the memory stays as it was.
        """
        seen = {name: read(name, obs.get(name), size) for name, size in self.sizes.items()}
        if obs.get("flown") is not None:
            seen["flown"] = read("flown", obs["flown"], 3)
        plan, self.command, movers = self.engine.step(seen)
        return {"plan": plan, MOVERS_NAME: movers.reshape(MOVERS)} if self.tracks else {"plan": plan}

    @property
    def response(self) -> dict[str, float] | None:
        """Return the response that the last step identified, as settings of the planner; None if it does not identify any."""
        if not self.settings["planner.identify"]:
            return None
        from fledge_runtime.numpy_engine.tables import decision_s, possible_rates

        delay, flat, up = self.engine.found
        (gain, lag, damping), (climb_gain, climb_lag, _) = (
            rates[k] for rates, k in zip(possible_rates(self.settings), (flat, up))
        )
        found = {"gain": gain, "damping": damping, "lag_s": lag, "climb_gain": climb_gain, "climb_lag_s": climb_lag}
        return {**found, "delay_s": delay * decision_s(self.settings)}


def read(name: str, given: Any, size: int) -> np.ndarray:
    """Return an observation as contiguous float32; raise InputError if it cannot be used."""
    if given is None:
        raise InputError(f"{name} is missing: the planner needs {size} numbers.")
    try:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(given, np.float32).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"{name} must have {size} numbers, got {type(given).__name__}.") from None
    if values.size != size:
        raise InputError(f"{name} must have {size} numbers, got {values.size}.")
    if not (np.abs(values) <= LARGEST).all():
        raise InputError(
            f"{name} must be finite and within ±1e6, but is not: pass the last finite reading. A beam that hits nothing is 0, "
            "and so is every number of an empty row."
        )
    return values


class Input(ctypes.Structure):
    """`fledge_input` of native/fledge_planner.h."""

    _fields_ = [
        ("state", ctypes.c_void_p),
        ("lidar", ctypes.c_void_p),
        ("lidar_count", ctypes.c_size_t),
        ("dynamic_obstacle", ctypes.c_void_p),
        ("pose", ctypes.c_void_p),
        ("attitude", ctypes.c_void_p),
        ("flown", ctypes.c_void_p),
    ]


class Output(ctypes.Structure):
    """`fledge_output`."""

    _fields_ = [("plan", ctypes.c_void_p), ("command", ctypes.c_void_p), ("movers", ctypes.c_void_p)]


class NativePlanner:
    """The C library's planner. `library` is a loaded library."""

    def __init__(self, settings: Mapping[str, Any], library: Any) -> None:
        self.handle, self.library = ctypes.c_void_p(), library
        declare(library)
        chosen = ctypes.create_string_buffer(library.fledge_settings_size())
        library.fledge_settings_default(chosen)
        for name in (*NUMBERS, "world"):
            self.call(library.fledge_settings_set, chosen, name.encode(), float(settings[name]))
        for name in CHOICES:
            self.call(library.fledge_settings_choose, chosen, name.encode(), settings[name].encode())
        rows = settings[ELEVATIONS]
        self.call(library.fledge_settings_elevations, chosen, (ctypes.c_double * len(rows))(*rows), len(rows))
        self.call(library.fledge_planner_create, chosen, ctypes.byref(self.handle))

    def call(self, function: Any, *args: Any) -> None:
        text = ctypes.create_string_buffer(TEXT)
        if function(*args, text, TEXT):
            raise ContractError(text.value.decode())

    def reset(self) -> None:
        self.library.fledge_planner_reset(self.handle)

    def step(self, seen: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        plan, command, movers = (np.empty(size, np.float32) for size in (PLAN_WIDTH, 3, MOVERS[1] * MOVERS[2]))
        given = Input(lidar_count=seen["lidar"].size, **{name: values.ctypes.data for name, values in seen.items()})
        written = Output(plan.ctypes.data, command.ctypes.data, movers.ctypes.data)
        if self.library.fledge_planner_step(self.handle, ctypes.byref(given), ctypes.byref(written)):
            raise InputError(self.library.fledge_planner_error(self.handle).decode())
        return plan, command, movers

    @property
    def found(self) -> Any:
        """Return delay in decisions, and numbers of the horizontal and the vertical rate, of the identified response."""
        found = (ctypes.c_int * 3)()
        self.library.fledge_planner_response(self.handle, found)
        return tuple(found)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.fledge_planner_destroy(self.handle)
            self.handle = ctypes.c_void_p()


def declare(library: Any) -> None:
    """Set the argument types of the library's functions."""
    text, size, handle, settings = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
    doubles = ctypes.POINTER(ctypes.c_double)
    types = {
        "fledge_settings_size": ([], size),
        "fledge_settings_default": ([settings], None),
        "fledge_settings_name": ([size], text),
        "fledge_settings_set": ([settings, text, ctypes.c_double, text, size], ctypes.c_int),
        "fledge_settings_choose": ([settings, text, text, text, size], ctypes.c_int),
        "fledge_settings_elevations": ([settings, doubles, size, text, size], ctypes.c_int),
        "fledge_planner_create": ([settings, ctypes.POINTER(handle), text, size], ctypes.c_int),
        "fledge_planner_destroy": ([handle], None),
        "fledge_planner_reset": ([handle], None),
        "fledge_planner_step": ([handle, ctypes.POINTER(Input), ctypes.POINTER(Output)], ctypes.c_int),
        "fledge_planner_error": ([handle], text),
        "fledge_planner_response": ([handle, ctypes.POINTER(ctypes.c_int)], None),
    }
    for name, (arguments, result) in types.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
