"""The words that more than one signature takes."""

from typing import Annotated

from ..core.params import Choice

Vote = Annotated[str, Choice(("auto", "frequency", "total"))]
Divisor = Annotated[str, Choice(("mass", "count"))]
Unit = Annotated[str, Choice(("entry", "row"))]
