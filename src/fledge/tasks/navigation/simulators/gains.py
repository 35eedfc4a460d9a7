"""Parameters of the autopilot. Names in comments are PX4's; defaults are those of PX4 1.14.

Source: PX4's parameter reference, https://docs.px4.io/v1.14/en/advanced_config/parameter_reference.html
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Gains(enum.Enum):
    """Sets of gains of the autopilot; the help text of `env.autopilot` explains them."""

    px4 = "px4"
    stiff = "stiff"
    soft = "soft"
    smooth = "smooth"


@dataclass(frozen=True)
class Parameters:
    """Gains and limits of the cascade. Pairs are (horizontal, vertical) or (roll and pitch, yaw)."""

    velocity_p: tuple[float, float] = (1.8, 4.0)  # MPC_XY_VEL_P_ACC, MPC_Z_VEL_P_ACC, 1/s
    velocity_i: tuple[float, float] = (0.4, 2.0)  # MPC_XY_VEL_I_ACC, MPC_Z_VEL_I_ACC, 1/s²
    velocity_d: tuple[float, float] = (0.2, 0.0)  # MPC_XY_VEL_D_ACC, MPC_Z_VEL_D_ACC
    velocity_filter_hz: float = 5.0  # MPC_VELD_LP: of the derivative of velocity
    speed: float = 12.0  # MPC_XY_VEL_MAX, m/s
    climb: float = 3.0  # MPC_Z_VEL_MAX_UP, m/s
    sink: float = 1.5  # MPC_Z_VEL_MAX_DN, m/s
    tilt_deg: float = 45.0  # MPC_TILTMAX_AIR
    thrust: tuple[float, float] = (0.12, 1.0)  # MPC_THR_MIN, MPC_THR_MAX
    thrust_margin: float = 0.3  # MPC_THR_XY_MARG: thrust that is kept for the horizontal axes
    attitude_p: tuple[float, float] = (6.5, 2.8)  # MC_ROLL_P, MC_YAW_P, 1/s
    yaw_weight: float = 0.4  # MC_YAW_WEIGHT
    rate_limit_deg_s: tuple[float, float] = (220.0, 200.0)  # MC_ROLLRATE_MAX, MC_YAWRATE_MAX
    rate_p: tuple[float, float] = (0.15, 0.2)  # MC_ROLLRATE_P, MC_YAWRATE_P
    rate_i: tuple[float, float] = (0.2, 0.1)  # MC_ROLLRATE_I, MC_YAWRATE_I
    rate_d: tuple[float, float] = (0.003, 0.0)  # MC_ROLLRATE_D, MC_YAWRATE_D
    rate_integral: float = 0.3  # MC_RR_INT_LIM, MC_YR_INT_LIM
    gyro_hz: float = 40.0  # IMU_GYRO_CUTOFF
    gyro_rate_hz: float = 30.0  # IMU_DGYRO_CUTOFF: of the derivative of body rates
    slew: tuple[float, float] | None = None  # m/s²: largest change of velocity setpoints; no limit in offboard mode


PX4 = Parameters()
PARAMETERS = {
    Gains.px4: PX4,
    Gains.stiff: replace(
        PX4, velocity_p=(3.0, 6.0), attitude_p=(9.0, 2.8), rate_limit_deg_s=(360.0, 200.0), rate_p=(0.2, 0.2)
    ),
    # the lowest gains of velocity that PX4 documents
    Gains.soft: replace(PX4, velocity_p=(1.2, 2.0), velocity_i=(0.2, 1.0), attitude_p=(4.0, 2.0), rate_p=(0.1, 0.15)),
    Gains.smooth: replace(PX4, slew=(3.0, 3.0)),  # MPC_ACC_HOR and MPC_ACC_DOWN_MAX, as in PX4's own flight modes
}
