"""Many runs, and one run of many actors, on Ray (extra `scale`). What one process needs never comes here."""
