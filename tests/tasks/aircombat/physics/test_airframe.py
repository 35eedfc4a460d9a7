"""The airframe against spec/aircombat.md's known values, and against closed forms in float64."""

import math

import numpy as np
import pytest
import warp as wp

from fledge.tasks.aircombat.physics.airframe import Airframe, Flyer, Leg, advance, after, joined, move

G = 9.8
FIGHTER = {"cd0": G / 400**2, "k": 400**2 / (4 * G * 5**2), "rmin": 1000.0, "thrust": 1.5 * G, "max_load": 0.0}
MISSILE = {"cd0": G / 400**2, "k": 400**2 / (4 * G * 2**2), "rmin": 1000.0, "thrust": 15 * G, "max_load": 0.0}
STEPS = (1 / 120, 1 / 30, 0.1, 0.2)


@wp.kernel(enable_backward=False)
def fly(
    frame: Airframe,
    rudder: wp.array(dtype=float),
    thrust: float,
    dt: float,
    steps: int,
    summed: int,
    pos: wp.array(dtype=wp.vec2),
    dir: wp.array(dtype=wp.vec2),
    speed: wp.array(dtype=float),
):
    i = wp.tid()
    start = Flyer()
    start.pos = pos[i]
    start.dir = dir[i]
    start.speed = speed[i]
    body = start
    leg = Leg()
    for _k in range(steps):
        if summed == 1:
            leg = joined(leg, advance(frame, body.dir, body.speed, rudder[i], thrust, dt))
            body = after(start, leg)
        else:
            body = move(frame, body, rudder[i], thrust, dt)
    pos[i] = body.pos
    dir[i] = body.dir
    speed[i] = body.speed


class Flown:
    """Airframes flown side by side; complex places and directions."""

    def __init__(self, numbers: dict, speed: object, rudder: object = 0.0, direction: object = 1.0, at: object = 0.0):
        self.frame = Airframe()
        for name, value in numbers.items():
            setattr(self.frame, name, value)
        speed, rudder, direction, at = np.broadcast_arrays(
            *(np.atleast_1d(x) for x in (speed, rudder, np.asarray(direction, complex), np.asarray(at, complex)))
        )
        self.rudder = wp.array(rudder.astype(np.float32), dtype=float)
        pairs = [np.stack([z.real, z.imag], -1).astype(np.float32) for z in (at, direction)]
        self._pos, self._dir = (wp.array(pair, dtype=wp.vec2) for pair in pairs)
        self._speed = wp.array(speed.astype(np.float32), dtype=float)

    def fly(self, seconds: float, thrust: float, dt: float = 0.1, summed: bool = False) -> "Flown":
        steps = round(seconds / dt)
        outputs = [self._pos, self._dir, self._speed]
        inputs = [self.frame, self.rudder, thrust, seconds / steps, steps, int(summed)]
        wp.launch(fly, len(self._speed), inputs, outputs, device="cpu")
        return self

    @property
    def speed(self) -> np.ndarray:
        return self._speed.numpy().astype(float)

    @property
    def pos(self) -> np.ndarray:
        return self._pos.numpy().astype(float) @ [1, 1j]

    @property
    def direction(self) -> np.ndarray:
        return self._dir.numpy().astype(float) @ [1, 1j]


def test_top_speed_is_489_9_metres_a_second() -> None:
    assert Flown(FIGHTER, 300).fly(400, 1.5 * G).speed == pytest.approx(489.9, rel=1e-4)


def test_a_full_rudder_turn_settles_at_255_9_metres_and_14_7_degrees_a_second() -> None:
    turning = Flown(FIGHTER, 300, rudder=1).fly(200, 1.5 * G)
    assert turning.speed == pytest.approx(255.9, rel=1e-3)
    before = turning.direction
    turned = np.angle(turning.fly(1, 1.5 * G).direction / before)
    assert np.degrees(turned) == pytest.approx(14.7, rel=5e-3)


@pytest.mark.parametrize("dt", STEPS)
def test_coasting_follows_its_closed_form(dt: float) -> None:
    start, t, cd0 = np.array([200.0, 700.0, 1400.0]), 30.0, MISSILE["cd0"]
    coasting = Flown(MISSILE, start).fly(t, 0.0, dt)
    np.testing.assert_allclose(coasting.speed, start / (1 + cd0 * start * t), rtol=2e-5)
    np.testing.assert_allclose(coasting.pos, np.log(1 + cd0 * start * t) / cd0, rtol=2e-5)


@pytest.mark.parametrize("dt", STEPS)
@pytest.mark.parametrize("rudder", [0.0, 0.3, -1.0])
def test_thrust_and_drag_follow_their_closed_form_along_an_arc(rudder: float, dt: float) -> None:
    start, t, thrust = np.array([250.0, 400.0, 900.0]), 10.0, 15 * G
    c = MISSILE["cd0"] + MISSILE["k"] * (rudder / 1000) ** 2
    a, top = math.sqrt(thrust * c), math.sqrt(thrust / c)
    speed = top * (start + top * math.tanh(a * t)) / (top + start * math.tanh(a * t))
    path = np.log(math.cosh(a * t) + start / top * math.sinh(a * t)) / c
    flown = Flown(MISSILE, start, rudder).fly(t, thrust, dt)
    np.testing.assert_allclose(flown.speed, speed, rtol=2e-5)
    angle = path * rudder / 1000
    want = path * np.exp(0.5j * angle) * np.sinc(angle / (2 * np.pi))
    np.testing.assert_allclose(np.abs(flown.pos - want), 0, atol=0.2)
    np.testing.assert_allclose(np.abs(flown.direction - np.exp(1j * angle)), 0, atol=2e-4)


@pytest.mark.parametrize("thrust", [0.0, 15 * G, 100 * G])
def test_one_coarse_step_of_an_airframe_full_of_drag_is_as_exact(thrust: float) -> None:
    draggy = MISSILE | {"rmin": 150.0}
    c = draggy["cd0"] + draggy["k"] / 150**2
    flown = Flown(draggy, 600.0, rudder=1.0).fly(0.2, thrust, 0.2)
    t = np.linspace(0, 0.2, 200_001)
    speed = np.full(1, 600.0)
    if thrust:
        a, top = math.sqrt(thrust * c), math.sqrt(thrust / c)
        speed = top * (600 + top * np.tanh(a * t)) / (top + 600 * np.tanh(a * t))
    else:
        speed = 600 / (1 + c * 600 * t)
    angle = np.trapezoid(speed, t) / 150
    assert flown.speed == pytest.approx(speed[-1], rel=1e-5)
    assert flown.pos == pytest.approx(150 * (math.sin(angle) + 1j * (1 - math.cos(angle))), rel=1e-5)
    assert flown.direction == pytest.approx(np.exp(1j * angle), rel=1e-5)


def test_steps_of_any_length_lead_to_the_same_place() -> None:
    ends = [Flown(FIGHTER, 300, [0.0, 0.4, -1.0]).fly(60, G, dt, summed=True) for dt in STEPS]
    for end in ends[1:]:
        np.testing.assert_allclose(np.abs(end.pos - ends[0].pos), 0, atol=0.5)
        np.testing.assert_allclose(end.speed, ends[0].speed, rtol=1e-6)


def test_legs_summed_over_a_second_do_not_lose_metres_far_from_the_origin() -> None:
    rounded, summed = (Flown(FIGHTER, 489.0, at=30_000.0) for _ in range(2))
    for _ in range(200):
        rounded.fly(1.0, 1.5 * G, 0.01)
        summed.fly(1.0, 1.5 * G, 0.01, summed=True)
    top, a = math.sqrt(1.5 * G / FIGHTER["cd0"]), math.sqrt(1.5 * G * FIGHTER["cd0"])
    exact = 30_000 + math.log(math.cosh(200 * a) + 489 / top * math.sinh(200 * a)) / FIGHTER["cd0"]
    assert abs(summed.pos.real - exact) < 0.5
    assert abs(rounded.pos.real - exact) > 5.0  # why the duel sums them


@pytest.mark.parametrize(("numbers", "limit", "speeds"), [(FIGHTER, 9.0, (250, 490)), (MISSILE, 40.0, (300, 1500))])
@pytest.mark.parametrize("dt", STEPS)
def test_load_limits_hold_at_the_speed_of_mid_step(numbers: dict, limit: float, speeds: tuple, dt: float) -> None:
    start = np.linspace(*speeds, 50)
    flown = Flown(numbers | {"max_load": limit * G}, start, rudder=1.0).fly(dt, 0.0, dt)
    c = (1 / flown.speed - 1 / start) / dt  # coasting: 1/v grows evenly
    curvature = np.angle(flown.direction) * c / np.log(start / flown.speed)
    load = curvature * (2 / (1 / start + 1 / flown.speed)) ** 2
    assert (load <= limit * G * 1.001).all()
    bound = curvature < 0.999 / 1000
    assert bound.any()
    assert not bound.all()
    np.testing.assert_allclose(load[bound], limit * G, rtol=1e-3)  # what it may bear, it uses


def test_directions_stay_of_length_one() -> None:
    flown = Flown(MISSILE, 600.0, np.linspace(-1, 1, 41)).fly(240, 15 * G, 1 / 120)
    np.testing.assert_allclose(np.abs(flown.direction), 1.0, atol=3e-7)


def test_a_mirrored_airframe_gives_the_same_bits() -> None:
    nose = np.exp(1j * np.linspace(0, 6, 50)).astype(np.complex64)
    rudder = np.linspace(-1, 1, 50)
    a = Flown(MISSILE, 500.0, rudder, nose, 3e4j).fly(20, 15 * G)
    b = Flown(MISSILE, 500.0, -rudder, nose.conj(), -3e4j).fly(20, 15 * G)
    np.testing.assert_array_equal(a.pos, b.pos.conj())
    np.testing.assert_array_equal(a.speed, b.speed)
