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
