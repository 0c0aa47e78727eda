"""Quality rows: faults that manyview must withstand and its speed limits, each runnable by id.

    python -m quality                # every row
    python -m quality S6 P3          # some rows
    python -m quality --list

The tests that carry `@pytest.mark.quality("S6")` check row S6; every check exists only once.
"""
