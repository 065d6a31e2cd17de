"""What every table of settings is: checked when it is made, closed to unknown keys, unchangeable."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]


class Schema(BaseModel):
    """A table of settings; a subclass names its keys, each with type, bounds and description.

    A value is of the type of its key: no text or switch for a number, no 3.0 for a 3, and no number that is none (NaN,
    infinity).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
