"""The exceptions by which loops and callbacks speak to the trainer and its caller."""


class StopLoopException(Exception):
    """Raise it in a callback or a step to end `fit` in good order."""


class ValidationLeft(Exception):
    """SIGTERM was noticed between two batches of a validation: `fit` saves and ends; nobody else meets this."""


class LoopException(Exception):
    """A loop cannot go on; it leaves `fit` as any other error does."""


class CallbackException(Exception):
    """A callback cannot do what it was set up for; it leaves `fit` as any other error does."""
