"""What the suite measures, and a module with a doctest.

>>> step(2)
4
"""


def step(number=1):
    return number * 2


class Noted(UserWarning):
    """A warning class of a project."""


class Unpicklable(UserWarning):
    """A warning that cannot travel between processes as it is."""

    def __init__(self, text):
        super().__init__(text)
        self.callback = lambda: text
