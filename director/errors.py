"""One error for input that cannot be used."""


class InputError(ValueError):
    """Bad input (settings, data file, weights, predictions): the message names the value and the remedy."""
