"""`manyview.utils.json_io` by its earlier name."""

from manyview.utils.json_io import MOST_BYTES, MOST_VALUES, as_json, is_count, parsed, read_object, value_count

__all__ = ["MOST_BYTES", "MOST_VALUES", "as_json", "is_count", "parsed", "read_object", "value_count"]
