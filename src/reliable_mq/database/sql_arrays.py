"""Many rows as one parameter for each column, on PostgreSQL.

A statement has one text, and one prepared plan, for any number of rows; neither we nor the server
write or read a parameter for each value.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, column, func
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

PLACE = "place"
"""The column that counts the rows, in the order of the arrays."""


def rows_of_arrays(types: Mapping[str, TypeEngine[Any]]) -> Any:
    """Return what a statement may select from: a row for each place of the arrays.

    Args:
        types: of the columns by name; the arrays are parameters of the same names.
    """
    arrays = (bindparam(name, type_=ARRAY(each)) for name, each in types.items())
    columns = (column(name, each) for name, each in types.items())
    return func.unnest(*arrays).table_valued(*columns, with_ordinality=PLACE).render_derived()
