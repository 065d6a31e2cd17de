"""What a suite of predictions is made on."""

from typing import Literal

from pydantic import Field

from director.schema import Positive, Schema


class Suite(Schema):
    """One suite of predictions of a run: `val`, `test`, `corrupted`, `shifted` or `ood-<data set>`."""

    dataset: str = Field(description="name of its data set")
    part: Literal["validation", "test"] | None = Field(
        description="part of the experiment's split; null for a data set that the split does not deal: its test part"
    )
    labelled: bool = Field(description="whether its labels are those of the experiment's task")
    at_most: Positive | None = Field(None, description="examples, evenly spaced; null for all")
