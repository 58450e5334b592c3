"""The options of the sink: ``df.write`` and ``writeStream`` with ``format("zmqraft")``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from raft_client._common.column_types import conversion
from raft_client.errors import SettingsError
from raft_client.spark.options import option_name, whole_number
from raft_client.wire.frames import MAX_UINT

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What Spark adds to the options of a stream.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "path"})
_TEXTS: Final = ("string", "binary")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")


def _not_empty(_instance: object, attribute: Any, value: str | None) -> None:
    if value is not None and not value.strip():
        raise SettingsError(f"{option_name(attribute.name)} must not be empty")


@attrs.frozen(kw_only=True)
class WriteOptions:
    """What is appended, and under which ids. Raises :class:`SettingsError`."""

    #: The name of this pipeline, the same for ever; of a batch write, the name of this one write.
    pipeline_id: str | None = attrs.field(default=None, validator=_not_empty)
    #: The column with what is appended: string or binary.
    data_column: str = attrs.field(default="data", validator=_not_empty)
    #: The column with the place of the row in its source, a whole number, different for each row.
    index_column: str | None = attrs.field(default=None, validator=_not_empty)
    #: The column with the identity of the row: string, binary or a whole number.
    id_column: str | None = attrs.field(default=None, validator=_not_empty)
    #: Ids are made of the data: equal rows of a batch are appended once.
    content_ids: bool = False
    #: The batch of the checkpoint with which the pipeline begins.
    first_batch: int = attrs.field(default=0, validator=whole_number(0, MAX_UINT))

    def __attrs_post_init__(self) -> None:
        given = [self.index_column is not None, self.id_column is not None, self.content_ids]
        if sum(given) > 1:
            raise SettingsError(
                "indexColumn, idColumn and contentIds are three ways to tell rows apart: give one of them"
            )
        if not any(given):
            raise SettingsError(
                "a row that is written again must get the same id: give one of indexColumn (of a stream of zmqraft: "
                "index), idColumn, or contentIds=true, which appends equal rows of a batch once"
            )


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Without those that Spark adds."""
    return {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises SettingsError when a column is missing, or has a type that is not taken."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    wanted: list[tuple[str, str | None, tuple[str, ...], str]] = [
        ("dataColumn", options.data_column, _TEXTS, "string"),
        ("indexColumn", options.index_column, _WHOLE, "bigint"),
        ("idColumn", options.id_column, (*_TEXTS, *_WHOLE), "string"),
    ]
    for option, column, allowed, to in wanted:
        if column is not None:
            _check_column(types, option, column, allowed, to)


def _check_column(types: Mapping[str, str], option: str, column: str, allowed: tuple[str, ...], to: str) -> None:
    if column not in types:
        raise SettingsError(f"{option}: there is no column {column!r}; there are {', '.join(types)}")
    if types[column] not in allowed:
        remedy = conversion(column, types[column], to)
        raise SettingsError(
            f"{option}: the column {column!r} is {types[column]}; it must be {' or '.join(allowed)}{remedy}"
        )
