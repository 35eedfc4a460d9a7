"""Benchmarks of drone navigation.

For comparison they list success rates that other projects published, measured with their own simulators, sensors and drones.
"""

from __future__ import annotations

from fledge.tasks.metrics import Benchmark
from fledge.tasks.navigation.randomize import AIRFRAME

PILOTS = ("straight", "gap", "orca", "planner", "fledge-reflex", "fledge-nav")
BARS = {25: 0.97, 50: 0.97, 75: 0.94, 110: 0.93, 150: 0.66}  # bars in 24 x 24 m -> success, by MOTAR
P2M: dict[tuple[int, int], tuple[float | None, ...]] = {  # (movers, cylinders) -> success of P2M, FAPP, NavRL, Obsnet
    (7, 7): (0.95, 0.90, 0.45, 0.20),
    (13, 13): (0.65, 0.30, 0.30, 0.30),
    (25, 19): (0.40, 0.25, 0.20, 0.20),
    (25, 0): (0.50, 0.20, 0.15, 0.25),
    (0, 44): (0.60, 0.75, 0.80, None),
}
SANDO = {
    "50": ("sando_easy", 32),
    "100": ("sando_medium", 65),
    "200": ("sando_hard", 130),
}  # obstacles -> scene, movers
ROUND = "Share of flights that flew round, beyond"
RULES = (  # the same for every policy; each policy keeps its own sensors, speed limit and decision rate
    "env.dt_s=0.016",
    "env.dynamics=lee",
    "env.autopilot=px4",
    "env.floating_boxes=true",
    "env.collision=cylinder",
    "env.collision_radius_m=0.3",
    "env.body_height_m=0.2",
    "env.min_height_m=0.2",
    "env.max_height_m=4.0",
    "perception=perfect",
    *(f"env.randomize.{name}=0" for name in AIRFRAME),
)
FOREST = (*RULES, "env.goal_radius_m=0.5", "env.max_episode_steps=2200")
WORLDS = ("rooms", "corridors", "pillars", "cave", "canopy", "city")  # generators whose worlds fit below 4 m
FOREST_M2, ARENA_M2 = 40.0 * 40.0, 24.0 * 24.0


SEEN, DRONE = "env.perception.", "env.randomize."
FAULTS = {  # each fault alone, at about the level of poor perception
    "perfect": [],
    "30 % of movers missed": [f"{SEEN}miss_rate=0.3"],
    "tracks lost": [f"{SEEN}lose_rate=0.2", f"{SEEN}lose_s=1"],
    "ghosts": [f"{SEEN}ghosts=0.5"],
    "movers 100 ms late": [f"{SEEN}mover_delay_s=0.1"],
    "movers 200 ms late": [f"{SEEN}mover_delay_s=0.2"],
    "movers at 10 Hz": [f"{SEEN}mover_period_s=0.1"],
    "noisy movers": [f"{SEEN}position_noise=0.05", f"{SEEN}velocity_noise=0.15"],
    "sizes ± 30 %": [f"{SEEN}size_error=0.3"],
    "occlusion": [f"{SEEN}occlusion=true"],
    "view of 87°": [f"{SEEN}view_deg=87"],
    "noisy LiDAR": [f"{DRONE}lidar_noise_m=0.02", f"{DRONE}lidar_noise_per_m2=0.004"],
    "10 % of beams lost": [f"{DRONE}lidar_dropout=0.1"],
    "LiDAR at 10 Hz": [f"{SEEN}lidar_period_s=0.1"],
    "LiDAR 100 ms late": [f"{SEEN}lidar_delay_s=0.1"],
    "odometry drift": [f"{SEEN}drift_m=0.3", f"{SEEN}drift_yaw_deg=1"],
    "wind to 1 m/s²": [f"{DRONE}wind_m_s2=1"],
    "commands 50 ms late": [f"{DRONE}latency_steps=3", f"{DRONE}latency_min_steps=3"],
    "commands 100 ms late": [f"{DRONE}latency_steps=6", f"{DRONE}latency_min_steps=6"],
    "gains ± 30 %": [f"{DRONE}velocity_gain=0.3", f"{DRONE}attitude_gain=0.3"],
    "mass, thrust ± 5 %": [f"{DRONE}mass=0.05", f"{DRONE}thrust=0.05"],
    "rotor lag, drag ± 30 %": [f"{DRONE}rotor_lag=0.3", f"{DRONE}drag=0.3"],
    "typical": ["perception=typical"],
    "poor": ["perception=poor"],
}
LATE = {"50 ms": 3, "100 ms": 6, "200 ms": 13}  # physics steps of 16 ms
PACKAGES = {"mujoco": "mujoco", "pyflyt": "PyFlyt"}
NOISE = [f"{DRONE}lidar_noise_m=0.03", f"{DRONE}lidar_dropout=0.02"]
MISSED = [f"{SEEN}miss_rate=0.3"]


def late(delay: str) -> list[str]:
    return [f"{DRONE}latency_steps={LATE[delay]}", f"{DRONE}latency_min_steps={LATE[delay]}"]


def flown_by(dynamics: str, *columns: str) -> dict[str, list[str]]:
    """Return the env configs of a simulator by heading; each of `columns` is a key of `changes`."""
    changes: dict[str, list[str]] = {
        "0 movers": ["env.moving_obstacles=0"],
        "80 movers": [],
        "stiff": ["env.autopilot=stiff"],
        "soft": ["env.autopilot=soft"],
        "smooth": ["env.autopilot=smooth"],
        **{delay: late(delay) for delay in LATE},
        "noise": NOISE,
        "30 % missed": MISSED,
        "all": [*late("100 ms"), *NOISE, *MISSED],
    }
    return {f"{dynamics} {name}": [f"env.dynamics={dynamics}", *changes[name]] for name in columns or changes}


TRANSFER = {
    **flown_by("lee", "0 movers", "80 movers", "100 ms", "all"),
    **flown_by("iris"),
    **flown_by("mujoco", "0 movers", "80 movers", "soft", "100 ms", "all"),
    **flown_by("pyflyt", "0 movers", "80 movers", "soft", "100 ms", "all"),
}


def movers(*counts: int) -> dict[str, list[str]]:
    return {f"{count} movers": [f"env.moving_obstacles={count}"] for count in counts}


def as_dense(bars: int) -> list[str]:
    """Return config overrides for a forest without moving obstacles, with as many columns per m² as MOTAR's arena has bars.

    `bars` is the number of bars in MOTAR's arena of 24 x 24 m.
    """
    return [f"env.static_obstacles={round(bars * FOREST_M2 / ARENA_M2)}", "env.moving_obstacles=0"]


BENCHMARKS = {
    "crossing": Benchmark(
        title="From side to side of a walled forest of 350 columns",
        preset="crossing",
        rules=FOREST,
        worlds=movers(0, 40, 80),
        policies=(*PILOTS, "fledge-nav+orca", "fledge-nav+planner"),
    ),
    "faults": Benchmark(
        title="Crossing 350/80 under one fault of perception, wind or drone at a time, and under all of them (typical, poor)",
        preset="crossing",
        rules=(*FOREST, "env.moving_obstacles=80"),
        worlds=FAULTS,
        policies=("planner", "planner(guard=true)", "fledge-reflex", "fledge-nav"),
    ),
    "transfer": Benchmark(
        title="Crossing in other simulators: lee (the env's own drone), iris (PX4's, in NumPy), MuJoCo and PyFlyt, all three "
        "under a PX4-like autopilot with PX4's gains, stiffer, softer ones, or smoothed commands; commands 50 to 200 ms late, "
        "3 cm of LiDAR noise and 2 % of beams lost, 30 % of movers missed; all: 100 ms, noise and missed movers",
        preset="crossing",
        rules=(*FOREST, "env.moving_obstacles=80"),
        worlds=TRANSFER,
        policies=("planner", "planner(guard=true)", "fledge-nav"),
        needs={name: PACKAGES[kind] for name in TRANSFER if (kind := name.split()[0]) in PACKAGES},
        endings=("collision_static", "collision_moving", "timeout"),
    ),
    "swarm": Benchmark(
        title="2 to 32 drones in one world, flown by the same policy: antipodal circle, crossing streams, corridor",
        preset="swarm",
        rules=(*FOREST, "env.static_obstacles=0", "env.moving_obstacles=0"),
        worlds={
            **{f"circle {count}": [f"env.drones={count}"] for count in (2, 4, 8, 16, 32)},
            **{f"streams {count}": ["env.starts=streams", f"env.drones={count}"] for count in (8, 32)},
            **{
                f"corridor {count}": ["env.starts=corridor", "env.layout=arena", f"env.drones={count}"]
                for count in (8, 32)
            },
        },
        policies=("straight", "orca", "planner(guard=true)", "fledge-reflex", "fledge-nav"),
    ),
    "navrl": Benchmark(
        title="NavRL's forest of 350 columns: starts and goals on all four edges (E), and north to south in rows (R)",
        preset="default",
        rules=FOREST,
        worlds={
            f"{mark} {count}": [f"env.starts={starts}", f"env.moving_obstacles={count}"]
            for mark, starts in (("E", "edges"), ("R", "rows"))
            for count in (0, 40, 80, 120)
        },
        policies=PILOTS,
        published={"NavRL, in training": {"E 80": 0.83, "E 120": 0.69}},
        source="NavRL (Xu et al., RA-L 2025) reports success during training with its curriculum, in Isaac Sim.",
    ),
    "p2m": Benchmark(
        title="P2M's arena, 30 m between walls: movers + standing cylinders",
        preset="p2m",
        rules=(*RULES, "env.goal_radius_m=1.0", "env.max_episode_steps=3750"),
        worlds={
            f"{moving}+{standing}": [f"env.moving_obstacles={moving}", f"env.static_obstacles={standing}"]
            for moving, standing in P2M
        },
        policies=PILOTS,
        published={
            method: {f"{m}+{s}": rate for (m, s), rates in P2M.items() if (rate := rates[k]) is not None}
            for k, method in enumerate(("P2M", "FAPP", "NavRL", "Obsnet"))
        },
        source="P2M (arclab-hku, RA-L 2026) reports about 20 trials each, in its own simulator.",
    ),
    "sando": Benchmark(
        title="SANDO's worlds, 105 m among 50, 100 or 200 obstacles of which 65 % move, each flight in its own world",
        preset="sando",
        rules=(
            *RULES,
            "env.collision_radius_m=0.142",
            "env.min_height_m=0.5",
            "env.max_height_m=6.0",
            "env.goal_radius_m=1.0",
            "env.max_episode_steps=6250",
        ),
        worlds={
            f"{count} obstacles": [f"env.world={world}", f"env.moving_obstacles={moving}"]
            for count, (world, moving) in SANDO.items()
        },
        policies=("straight", "orca", "planner", "planner(guard=true)", "fledge-reflex", "fledge-nav"),
        published={
            method: {f"{count} obstacles": rate for count, rate in zip(SANDO, rates, strict=True)}
            for method, rates in {
                "SANDO, true states": (1.0, 1.0, 1.0),
                "EGO-Swarm2, true states": (1.0, 1.0, 0.8),
                "FAPP, true states": (0.8, 0.8, 0.5),
                "SANDO, own D435, best": (0.95, 0.90, 0.64),
            }.items()
        },
        source="SANDO (MIT ACL, arXiv 2604.07599) reports 10 flights each at up to 5 m/s; policies here keep their own limit. "
        "Its paper speaks of 100 x 40 m, its code places obstacles within 6 m of y = 0.",
        reported={
            "inside_success": "Success of flights that never went beyond |y| = 6 m, as a share of all flights",
            "round_share": f"{ROUND} |y| = 6 m",
        },
    ),
    "fapp": Benchmark(
        title="FAPP's scene, 54 m among 100 boxes, 100 cylinders and 100 movers at 0.5 to 3 m/s, each flight in its own world",
        preset="fapp",
        rules=(*RULES, "env.goal_radius_m=1.0", "env.max_episode_steps=3750"),
        worlds={"100+100+100": ["env.world=fapp", "env.moving_obstacles=100"]},
        policies=("straight", "orca", "planner", "planner(guard=true)", "fledge-reflex", "fledge-nav"),
        published={"FAPP": {"100+100+100": 0.94}, "best of its baselines": {"100+100+100": 0.78}},
        source="FAPP (T-RO 2025) reports 50 flights in its own simulator, with states at 50 Hz and 13 ms late; sizes, "
        "routes and motions of its obstacles are not published.",
    ),
    "worlds": Benchmark(
        title="Generated worlds with ten movers, from anywhere to anywhere; the policy knows the direction of the goal only",
        preset="default",
        rules=FOREST,
        worlds={name: [f"env.world={name}", "env.moving_obstacles=10"] for name in WORLDS},
        policies=("straight", "orca", "planner(guard=true)", "fledge-reflex", "fledge-nav"),
    ),
    "density": Benchmark(
        title="Columns alone, as dense as 25 to 150 bars in 24 x 24 m, from side to side of a walled forest",
        preset="crossing",
        rules=FOREST,
        worlds={f"{bars} bars": as_dense(bars) for bars in BARS},
        policies=PILOTS,
        published={"MOTAR": {f"{bars} bars": rate for bars, rate in BARS.items()}},
        source="MOTAR reports an arena of 24 m with its own bars, drone and sensors: compare the trend, not the level.",
    ),
}
