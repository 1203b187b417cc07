"""Many rows as one array parameter for each column, on PostgreSQL.

Any number of rows has the same statement text and one prepared plan. Neither the client nor the
server handles a parameter for each value.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ARRAY, bindparam, column, func
from sqlalchemy.types import TypeEngine

PLACE = "place"
"""The column with the row's number, in the order of the arrays."""


def rows_of_arrays(types: Mapping[str, TypeEngine[Any]]) -> Any:
    """Return a table expression for a statement: one row for each element of the arrays.

    Args:
        types: the types of the columns by name; the arrays are parameters of the same names.
    """
    arrays = (bindparam(name, type_=ARRAY(each)) for name, each in types.items())
    columns = (column(name, each) for name, each in types.items())
    return func.unnest(*arrays).table_valued(*columns, with_ordinality=PLACE).render_derived()
