"""Names of the DeepMind Control tasks and their cameras; imports no dm_control."""

CAMERAS = {
    "acrobot": ("fixed", "lookat"),
    "ball_in_cup": ("cam0", "cam1"),
    "cartpole": ("fixed", "lookatcart"),
    "cheetah": ("side", "back"),
    "dog": ("y-axis", "x-axis"),
    "finger": ("cam0", "cam1"),
    "fish": ("tracking_top", "tracking_x", "tracking_y", "fixed_top", "eye"),
    "hopper": ("cam0", "back"),
    "humanoid": ("back", "side", "egocentric"),
    "humanoid_CMU": ("back", "side", "egocentric"),
    "lqr": ("cam0", "cam1"),
    "manipulator": ("fixed", "hand"),
    "pendulum": ("fixed", "lookat"),
    "point_mass": ("fixed", "cam0"),
    "quadruped": ("global", "x", "y", "egocentric"),
    "reach_duplo": ("front_close", "left_close", "right_close", "front_far", "top_down"),
    "reacher": ("fixed", "hand"),
    "stacker": ("fixed", "hand"),
    "swimmer": ("tracking1", "tracking2", "eyes"),
    "walker": ("side", "back"),
}
"""Cameras by domain, in the order of their numbers; a test compares them with dm_control's models.

A camera that a model lacks is added when the model is loaded, as `env._load_reach_duplo` does for Reach Duplo.
"""

TASK_NAMES = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

_ARM = ("arm_pos", "arm_vel", "touch", "hand_pos")
_DOG = (
    "joint_angles",
    "joint_velocites",
    "torso_pelvis_height",
    "z_projection",
    "torso_com_velocity",
    "inertial_sensors",
    "foot_forces",
    "touch_sensors",
    "actuator_state",
)
_HUMANOID = ("joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity", "velocity")
_QUADRUPED = ("egocentric_state", "torso_velocity", "torso_upright", "imu", "force_torque")
DUPLO_OBSERVABLES = {
    "arm_position": "jaco_arm/joints_pos",
    "arm_velocity": "jaco_arm/joints_vel",
    "arm_torque": "jaco_arm/joints_torque",
    "hand_position": "jaco_arm/jaco_hand/joints_pos",
    "hand_velocity": "jaco_arm/jaco_hand/joints_vel",
    "pinch_position": "jaco_arm/jaco_hand/pinch_site_pos",
    "target_position": "duplo2x4/position",
}
"""Observables of Reach Duplo by the names of their state vectors."""
STATE_NAMES = {
    "acrobot": ("orientations", "velocity"),
    "cartpole": ("position", "velocity"),
    "ball_in_cup": ("position", "velocity"),
    "cheetah": ("position", "velocity"),
    "dog": _DOG,
    "dog_fetch": (*_DOG, "ball_state", "target_position"),
    "finger_spin": ("position", "velocity", "touch"),
    "finger": ("position", "velocity", "touch", "target_position", "dist_to_target"),
    "fish_upright": ("joint_angles", "upright", "velocity"),
    "fish": ("joint_angles", "upright", "target", "velocity"),
    "hopper": ("position", "velocity", "touch"),
    "humanoid": _HUMANOID,
    "humanoid_run_pure_state": ("position", "velocity"),
    "humanoid_CMU": _HUMANOID,
    "lqr": ("position", "velocity"),
    "manipulator": (*_ARM, "object_pos", "object_vel", "target_pos"),
    "pendulum": ("orientation", "velocity"),
    "point_mass": ("position", "velocity"),
    "quadruped": _QUADRUPED,
    "quadruped_escape": (*_QUADRUPED, "origin", "rangefinder"),
    "quadruped_fetch": (*_QUADRUPED, "ball_state", "target_position"),
    "reach_duplo": tuple(DUPLO_OBSERVABLES),
    "reacher": ("position", "to_target", "velocity"),
    "stacker": (*_ARM, "box_pos", "box_vel", "target_pos"),
    "swimmer": ("joints", "to_target", "body_velocities"),
    "walker": ("orientations", "height", "velocity"),
}
"""State vectors by task, otherwise by domain, in dm_control's order and spelling; a test compares them with it."""

# PAPER: D20. Two cameras; the paper does not name them. The first two, unless one of them shows almost nothing.
CAMERA_PAIRS = {"quadruped": ("y", "x")}

PAPER_TASKS = (
    "cheetah_run",
    "finger_turn_hard",
    "hopper_hop",
    "quadruped_run",
    "reacher_hard",
    "walker_run",
    "acrobot_swingup",
    "cartpole_swingup_sparse",
    "cartpole_balance_sparse",
    "ball_in_cup_catch",
    "pendulum_swingup",
    "reach_duplo",
)


def split_task_name(name: str) -> tuple[str, str]:
    """Split a task name into dm_control's domain and task.

    `finger_turn_hard` becomes `finger`, `turn_hard`.
    """
    return next((domain, task) for domain, tasks in TASK_NAMES.items() for task in tasks if f"{domain}_{task}" == name)
