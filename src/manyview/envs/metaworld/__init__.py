"""Meta-World: fifty tasks of one robot arm, with cameras around the table and at its gripper."""
