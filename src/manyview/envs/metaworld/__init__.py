"""Meta-World: fifty tasks of one robot arm, seen from around the table and from its gripper."""
