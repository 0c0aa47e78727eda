"""Reading of untrusted Parquet files: columns of numbers with known sizes, nothing else."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.data.lerobot.layout import DatasetError
from manyview.utils.files import open_regular
from manyview.utils.optional_imports import import_optional
from manyview.utils.text import sanitize_text

MAX_FILE_BYTES = 2**31
MAX_COLUMN_BYTES = 2**32
"""Limit of the uncompressed size of a column, as the file declares it."""


def import_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; `ModuleNotFoundError` names the extra."""
    return import_optional("pyarrow", extra="datasets"), import_optional("pyarrow.parquet", extra="datasets")


def read_columns(path: Path, name: str, sizes: Mapping[str, int], *, max_rows: int) -> dict[str, NDArray[Any]]:
    """Return columns of a file as arrays, [N] for size 1, else [N, size].

    Args:
        path: File to read.
        name: Its name in errors.
        sizes: Numbers in each row of every column.
        max_rows: Limit of rows.

    Raises:
        DatasetError: The file is invalid, or has more rows, other columns or values than numbers.

    """
    arrow, parquet = import_pyarrow()
    try:
        with open_regular(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_FILE_BYTES:
                raise DatasetError(f"{name} is too large: expected at most {MAX_FILE_BYTES:,} bytes, got {size:,}")
            table = parquet.ParquetFile(file)
            schema = table.schema_arrow
            for column in sizes:
                if (count := schema.names.count(column)) != 1:
                    raise DatasetError(f"{name} has column {column} {count} times: expected once, as the metadata says")
                _check_type(arrow, schema.field(column).type, name, column)
            leaves = _check_metadata(table.metadata, schema, name, sizes, max_rows)
            # By index: a field of a nested column may have the path of a feature, such as `observation.state`.
            columns = table.reader.read_all(column_indices=leaves, use_threads=False)
            return {column: _to_array(columns.column(column), name, column, size) for column, size in sizes.items()}
    except DatasetError:
        raise
    except (arrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DatasetError(f"{name} cannot be read: {sanitize_text(error, max_chars=200)}") from None


def _check_metadata(metadata: Any, schema: Any, name: str, sizes: Mapping[str, int], max_rows: int) -> list[int]:
    """Check the declared sizes before any column is decompressed; return the Parquet columns of `sizes`."""
    # By position: a path such as `action.list.element` may have any names after that of its column, which has dots too.
    owners = [field.name for field in schema for _ in range(_count_leaves(field.type))]
    if len(owners) != metadata.num_columns:
        raise DatasetError(f"{name} has unsupported columns: expected {len(owners)}, got {metadata.num_columns}")
    if metadata.num_rows > max_rows:
        raise DatasetError(f"{name} has too many rows: expected at most {max_rows:,}, got {metadata.num_rows:,}")
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for index, feature in enumerate(owners):
            if feature not in sizes:
                continue
            column = rows.column(index)
            if column.num_values > rows.num_rows * sizes[feature] or column.total_uncompressed_size > MAX_COLUMN_BYTES:
                raise DatasetError(
                    f"{name}: column {feature} has too many values: expected {sizes[feature]} in each of "
                    f"{rows.num_rows:,} rows, got {column.num_values:,}"
                )
    return [index for index, feature in enumerate(owners) if feature in sizes]


def _count_leaves(kind: Any) -> int:
    """Return the number of Parquet columns of an Arrow type."""
    return sum(_count_leaves(kind.field(index).type) for index in range(kind.num_fields)) or 1


def _check_type(arrow: Any, kind: Any, name: str, column: str) -> None:
    types = arrow.types
    value = (
        kind.value_type if types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind) else kind
    )
    if not (types.is_integer(value) or types.is_floating(value) or types.is_boolean(value)):
        raise DatasetError(f"{name}: column {column}: expected numbers, got {sanitize_text(kind, max_chars=80)}")


def _to_array(column: Any, name: str, feature: str, size: int) -> NDArray[Any]:
    rows, values = len(column), column
    if hasattr(column.type, "value_type"):
        values = column.combine_chunks().flatten() if column.num_chunks else column
    if column.null_count or values.null_count or len(values) != rows * size:
        raise DatasetError(
            f"{name}: column {feature} is incomplete: expected {size} numbers in each of {rows:,} rows, got "
            f"{len(values):,} in all, {column.null_count + values.null_count} of them missing"
        )
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False) if hasattr(values, "buffers") else values.to_numpy()
    return np.ascontiguousarray(array if size == 1 else array.reshape(rows, size))
