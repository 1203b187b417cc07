"""Java's `int` and `long` as types: msgspec refuses a number that Java could not hold."""

from typing import Annotated

import msgspec

I32_MAX = 2**31 - 1
I64_MAX = 2**63 - 1
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=I32_MAX)]
I64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=I64_MAX)]
