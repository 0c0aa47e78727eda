"""What became of runs: their states, curves of many, and episodes played again.

Finding and drawing runs reads their files as any other program would, without torch and whatever version wrote them.
"""
