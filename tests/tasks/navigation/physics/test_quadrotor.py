"""The quadrotor against the figures of spec/navigation.md, and against a second implementation in float64 NumPy."""

import numpy as np
import pytest
import warp as wp

from fledge.tasks.navigation.physics.quadrotor import (
    DAMPING,
    GRAVITY,
    HOVER_THROTTLE,
    MASS,
    MAX_THRUST,
    Airframe,
    Body,
    step_first_order,
    step_quadrotor,
    yaw_of,
)

DT = 0.016
FIELDS = {"pos": wp.vec3, "vel": wp.vec3, "quat": wp.quat, "rate": wp.vec3, "throttle": wp.vec4}
State = dict[str, np.ndarray]
# mass, thrust, damping, velocity gain, attitude gains, drag; share of rotor lag removed per step; wind in m/s²
NOMINAL = np.array([1, 1, 1, 1, 1, 1, 0.43, 0, 0, 0])


@wp.kernel(enable_backward=False)
def step_bodies(
    pos: wp.array(dtype=wp.vec3),
    vel: wp.array(dtype=wp.vec3),
    quat: wp.array(dtype=wp.quat),
    rate: wp.array(dtype=wp.vec3),
    throttle: wp.array(dtype=wp.vec4),
    command: wp.array(dtype=wp.vec3),
    factors: wp.array2d(dtype=float),
    first_order: int,
    steps: int,
    damping: float,
    dt: float,
    yaw: wp.array(dtype=float),
):
    i = wp.tid()
    body = Body()
    body.pos = pos[i]
    body.vel = vel[i]
    body.quat = quat[i]
    body.rate = rate[i]
    body.throttle = throttle[i]
    frame = Airframe()
    frame.mass = factors[i, 0]
    frame.thrust = factors[i, 1]
    frame.damping = factors[i, 2]
    frame.velocity_gain = factors[i, 3]
    frame.attitude_gain = factors[i, 4]
    frame.drag = factors[i, 5]
    frame.lag = factors[i, 6]
    frame.wind = wp.vec3(factors[i, 7], factors[i, 8], factors[i, 9])
    for _s in range(steps):
        if first_order == 1:
            body = step_first_order(body, command[i], frame, damping, dt)
        else:
            body = step_quadrotor(body, command[i], frame, damping, dt)
    pos[i] = body.pos
    vel[i] = body.vel
    quat[i] = body.quat
    rate[i] = body.rate
    throttle[i] = body.throttle
    yaw[i] = yaw_of(body.quat)


def advance(
    state: State, command: object, steps: int = 1, first_order: bool = False, factors: np.ndarray | None = None
) -> State:
    """The kernel's state after `steps`; `factors` are [N, 10] as NOMINAL."""
    n = len(state["pos"])

    def on_device(value: object, dtype: type) -> wp.array:
        return wp.array(np.ascontiguousarray(value, dtype=np.float32), dtype=dtype, device="cpu")

    fields = {name: on_device(state[name], dtype) for name, dtype in FIELDS.items()}
    commands = on_device(np.broadcast_to(command, (n, 3)), wp.vec3)
    scales = on_device(np.tile(NOMINAL, (n, 1)) if factors is None else factors, float)
    yaw = wp.zeros(n, dtype=float, device="cpu")
    args = [*fields.values(), commands, scales, int(first_order), steps, DAMPING, DT, yaw]
    wp.launch(step_bodies, n, args, device="cpu")
    return {name: array.numpy().astype(np.float64) for name, array in [*fields.items(), ("yaw", yaw)]}


def hovering(n: int = 1) -> State:
    return {
        "pos": np.zeros((n, 3)),
        "vel": np.zeros((n, 3)),
        "quat": np.tile([0.0, 0.0, 0.0, 1.0], (n, 1)),
        "rate": np.zeros((n, 3)),
        "throttle": np.full((n, 4), HOVER_THROTTLE),
    }


def flight(command: object, seconds: float) -> list[State]:
    """States after every step of a flight from hover."""
    states = [hovering()]
    for _ in range(round(seconds / DT)):
        states.append(advance(states[-1], command))
    return states[1:]


# ---- second implementation: one drone at a time, float64, matrices -------------------------------------------------

ANGLES = np.radians([0.0, 90.0, 180.0, -90.0])
SPINS = np.array([-1.0, 1.0, -1.0, 1.0])
INERTIA = np.diag([0.007, 0.007, 0.012])
THRUST, TORQUE, TOP_SPEED = 8.54858e-6, 1.36777e-7, 838.0


def hat(v: np.ndarray) -> np.ndarray:
    return np.array([[0, -v[2], v[1]], [v[2], 0, -v[0]], [-v[1], v[0], 0]])


def rotation_of(q: np.ndarray) -> np.ndarray:
    x = hat(q[:3])
    return np.eye(3) + 2 * q[3] * x + 2 * x @ x


def exponential(v: np.ndarray) -> np.ndarray:
    """Rodrigues' formula."""
    angle = np.linalg.norm(v)
    if angle < 1e-12:
        return np.eye(3) + hat(v)
    x = hat(v / angle)
    return np.eye(3) + np.sin(angle) * x + (1 - np.cos(angle)) * x @ x


def lee_torque_and_lift(
    rot: np.ndarray, vel: np.ndarray, rate: np.ndarray, command: np.ndarray, speed_up: float, stiff: float
) -> tuple:
    """Lee, Leok & McClamroch 2010, eqs. 12 and 13 with k_x = 0, the velocity gain per unit mass, and no feedforward."""
    force = 0.716 * (2.2 * speed_up * (command - vel) + np.array([0, 0, 9.81]))
    b3 = force / np.linalg.norm(force)
    yaw = np.arctan2(rot[1, 0], rot[0, 0])
    heading = np.array([np.cos(yaw), np.sin(yaw), 0.0])
    b2 = np.cross(b3, heading)
    b2 /= np.linalg.norm(b2)
    desired = np.column_stack([np.cross(b2, b3), b2, b3])
    skew = 0.5 * (desired.T @ rot - rot.T @ desired)
    error = np.array([skew[2, 1], skew[0, 2], skew[1, 0]])
    torque = -np.array([0.7, 0.7, 0.035]) * error - np.array([0.1, 0.1, 0.025]) * rate
    return stiff * torque, force @ rot[:, 2]


def mixer() -> np.ndarray:
    """Torque (3) and lift (1) from the squared rotor speeds (4)."""
    arms = 0.17 * np.stack([np.cos(ANGLES), np.sin(ANGLES), np.zeros(4)], axis=1)
    moments = np.array([np.cross(arm, [0, 0, THRUST]) for arm in arms]).T
    moments[2] = -SPINS * TORQUE
    return np.vstack([moments, np.full(4, THRUST)])


def reference_step(state: State, command: np.ndarray, factors: np.ndarray) -> State:
    """One step of every drone; attitude as a rotation matrix under "rot"."""
    out: State = {"pos": [], "vel": [], "rot": [], "rate": [], "throttle": []}
    mix = mixer()
    for i in range(len(state["pos"])):
        mass, thrust, damping, speed_up, stiff, drag, lag, *wind = factors[i]
        rot = rotation_of(state["quat"][i])
        torque, lift = lee_torque_and_lift(rot, state["vel"][i], state["rate"][i], command[i], speed_up, stiff)
        squared = np.linalg.pinv(mix) @ np.append(torque, lift)
        target = np.sqrt(np.clip(squared, 0, TOP_SPEED**2)) / TOP_SPEED
        throttle = state["throttle"][i] + lag * (target - state["throttle"][i])
        wrench = thrust * mix @ (throttle * TOP_SPEED) ** 2
        rate, inertia = state["rate"][i], INERTIA * mass
        spin = np.linalg.solve(inertia, wrench[:3] - np.cross(rate, inertia @ rate))
        keep = 1 - 0.2 * damping * DT
        rate = (rate + spin * DT) * keep
        push = rot[:, 2] * wrench[3] / (0.716 * mass) - np.array([0, 0, 9.81]) + wind
        vel = (state["vel"][i] + push * DT) * (1 - 0.2 * damping * drag * DT)
        rows = {"pos": state["pos"][i] + vel * DT, "vel": vel, "rate": rate, "throttle": throttle}
        for name, value in {**rows, "rot": rot @ exponential(rate * DT)}.items():
            out[name].append(value)
    return {name: np.array(rows) for name, rows in out.items()}


def random_states(rng: np.random.Generator, n: int) -> State:
    """Attitudes up to steep banks, rates up to a tumble, throttles anywhere."""
    tilt = rng.uniform(-1, 1, (n, 3)) * [1.0, 1.0, np.pi]
    quats = []
    for roll, pitch, yaw in tilt:
        half = np.array([roll, pitch, yaw]) / 2
        (cr, cp, cy), (sr, sp, sy) = np.cos(half), np.sin(half)
        quats.append(
            [
                sr * cp * cy - cr * sp * sy,
                cr * sp * cy + sr * cp * sy,
                cr * cp * sy - sr * sp * cy,
                cr * cp * cy + sr * sp * sy,
            ]
        )
    return {
        "pos": rng.uniform(-20, 20, (n, 3)),
        "vel": rng.uniform(-3, 3, (n, 3)),
        "quat": np.array(quats),
        "rate": rng.uniform(-4, 4, (n, 3)),
        "throttle": rng.uniform(0, 1, (n, 4)),
    }


def worst_difference(ours: State, theirs: State) -> float:
    rot = np.array([rotation_of(q) for q in ours["quat"]])
    pairs = [(ours[k], theirs[k]) for k in ("pos", "vel", "rate", "throttle")]
    return max(float(np.abs(a - b).max()) for a, b in [*pairs, (rot, theirs["rot"])])


# ---- the spec's figures --------------------------------------------------------------------------------------------


def test_hover_throttle_and_thrust_to_weight_are_the_hummingbirds() -> None:
    thrust_to_weight = 4 * MAX_THRUST / (MASS * GRAVITY)
    assert pytest.approx(0.5408, abs=5e-5) == HOVER_THROTTLE
    assert thrust_to_weight == pytest.approx(3.419, abs=5e-4)


def test_velocity_answers_a_command_of_two_as_the_spec_lists() -> None:
    speed = {round((k + 1) * DT, 3): s["vel"][0, 0] for k, s in enumerate(flight([2.0, 0.0, 0.0], 1.504))}
    expected = {0.08: 0.0177, 0.16: 0.1436, 0.32: 0.6922, 0.496: 1.2467, 0.992: 1.7740, 1.504: 1.8283}
    for when, value in expected.items():
        assert speed[when] == pytest.approx(value, abs=6e-5), f"at {when} s"


def test_steady_speed_is_the_command_less_what_damping_takes() -> None:
    steady = advance(hovering(), [2.0, 0.0, 0.0], steps=1000)
    assert steady["vel"][0, 0] == pytest.approx(1.8328, abs=5e-5)


def test_a_command_of_two_tilts_22_degrees_at_a_third_of_a_second_and_sags_33_millimetres() -> None:
    states = flight([2.0, 0.0, 0.0], 6.0)
    tilt = np.degrees([np.arccos(rotation_of(s["quat"][0])[2, 2]) for s in states])
    assert tilt.max() == pytest.approx(22.0, abs=1.0)
    assert (tilt.argmax() + 1) * DT == pytest.approx(0.32, abs=0.05)
    assert min(s["pos"][0, 2] for s in states) == pytest.approx(-0.033, abs=1e-3)


def test_hover_is_an_equilibrium() -> None:
    later = advance(hovering(), [0.0, 0.0, 0.0], steps=500)
    for name in ("pos", "vel", "rate"):
        assert np.abs(later[name]).max() < 1e-4, name


def test_yaw_is_the_heading_of_the_body_x_axis() -> None:
    state = random_states(np.random.default_rng(3), 64)
    moved = advance(state, [0.0, 0.0, 0.0])
    for yaw, quat in zip(moved["yaw"], moved["quat"], strict=True):
        forward = rotation_of(quat)[:, 0]
        assert np.angle(np.exp(1j * (yaw - np.arctan2(forward[1], forward[0])))) == pytest.approx(0, abs=1e-5)


# ---- against the second implementation -----------------------------------------------------------------------------


def test_one_step_from_any_state_equals_the_reference() -> None:
    rng = np.random.default_rng(5)
    state, command = random_states(rng, 300), rng.uniform(-2, 2, (300, 3))
    assert worst_difference(advance(state, command), reference_step(state, command, np.tile(NOMINAL, (300, 1)))) < 1e-4


def test_one_step_of_a_randomised_airframe_equals_the_reference() -> None:
    rng = np.random.default_rng(6)
    state, command = random_states(rng, 300), rng.uniform(-2, 2, (300, 3))
    factors = NOMINAL * rng.uniform(0.6, 1.4, (300, 10)) + np.repeat([0.0, 1.0], [7, 3]) * rng.normal(size=(300, 10))
    ours = advance(state, command, factors=factors)
    assert worst_difference(ours, reference_step(state, command, factors)) < 1e-4
    assert worst_difference(ours, reference_step(state, command, np.tile(NOMINAL, (300, 1)))) > 1e-2


def test_a_second_of_flight_under_changing_commands_equals_the_reference() -> None:
    rng = np.random.default_rng(7)
    ours = hovering(8)
    theirs = {**hovering(8)}
    command = np.zeros((8, 3))
    for k in range(62):
        if k % 12 == 0:
            command = rng.uniform(-2, 2, (8, 3))
        ours = advance(ours, command)
        step = reference_step(theirs, command, np.tile(NOMINAL, (8, 1)))
        assert worst_difference(ours, step) < 1e-4, f"step {k}"
        theirs = {**step, "quat": np.array([quaternion_of(r) for r in step["rot"]])}


def quaternion_of(rot: np.ndarray) -> np.ndarray:
    """The quaternion of a rotation of less than 180 degrees."""
    w = 0.5 * np.sqrt(1 + np.trace(rot))
    return np.append(np.array([rot[2, 1] - rot[1, 2], rot[0, 2] - rot[2, 0], rot[1, 0] - rot[0, 1]]) / (4 * w), w)


def test_the_stand_in_is_first_order_with_the_velocity_gain_and_damping() -> None:
    rng = np.random.default_rng(8)
    state, command = random_states(rng, 100), rng.uniform(-2, 2, (100, 3))
    moved = advance(state, command, first_order=True)
    vel = (state["vel"] + DT * 2.2 * (command - state["vel"])) * 0.9968
    np.testing.assert_allclose(moved["vel"], vel, atol=1e-6)
    np.testing.assert_allclose(moved["pos"], state["pos"] + vel * DT, atol=5e-6)
    for name in ("quat", "rate", "throttle"):
        np.testing.assert_allclose(moved[name], state[name], atol=1e-6)


def test_the_stand_in_honours_mass_thrust_velocity_gain_drag_damping_and_wind() -> None:
    rng = np.random.default_rng(9)
    state, command = random_states(rng, 100), rng.uniform(-2, 2, (100, 3))
    factors = NOMINAL * rng.uniform(0.6, 1.4, (100, 10)) + np.repeat([0.0, 1.0], [7, 3]) * rng.normal(size=(100, 10))
    mass, thrust, damping, speed_up, _, drag, _ = factors[:, :7].T[..., None]
    moved = advance(state, command, first_order=True, factors=factors)
    vel = state["vel"] + DT * 2.2 * speed_up * thrust / mass * (command - state["vel"]) + DT * factors[:, 7:]
    np.testing.assert_allclose(moved["vel"], vel * (1 - 0.2 * damping * drag * DT), atol=1e-6)
