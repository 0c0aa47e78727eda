"""Meta-World: fifty tasks of a robot arm, seen from the table and the gripper."""
