"""Study: a policy on the simulator's state with a bonus of the cameras; see PLAN.md."""
