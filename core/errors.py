"""What a user can cause and fix: every message says what, where, and what now."""

from .text import whole


class AlloyError(Exception):
    """A problem a user can do something about; its text is one sentence or more, ready to be shown."""

    def __init__(self, text: str) -> None:
        super().__init__(whole(text))


class FileError(AlloyError):
    """A file cannot be read, or is not what it should be."""


class StackError(AlloyError):
    """The entries of a stack do not fit together, or name something that is not there."""


class RecipeError(AlloyError):
    """A recipe asks for something unknown or contradictory."""


class SaveError(AlloyError):
    """A result cannot be written where it was asked for; what stood there before still does."""


class ProofError(AlloyError):
    """What was written does not equal what was merged, to the stated tolerance."""
