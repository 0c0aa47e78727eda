"""The quality rows: what manyview must withstand and how fast it must be, each runnable by its id.

    python -m quality                # every row that is built
    python -m quality S6 P3          # some rows
    python -m quality --list

A row is shown by the tests that carry `@pytest.mark.quality("S6")`; there is no second version of any check.
"""
