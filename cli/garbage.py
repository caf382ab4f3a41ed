"""When the collector looks for garbage that holds on to itself: seldom, and never through everything at once by itself.

A full collection looks at every object of every connection; with ten thousand of them that is seconds in which nothing
else happens.  What is freed by counting references, nearly everything, does not need it.  What is new is looked at
often and a little at a time: all of it has to be once, and a connection that is opened is made of dozens of objects.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE = 1_000, 1
"""Objects made and not freed before the young are looked at, and how often until those that survived are: about one
millisecond, and two or three.  All is looked at twice in any case: larger portions cost no less, and steps wait."""
OLD = 100_000
"""And how often that, until everything is."""


def settle_garbage() -> None:
    """What is there now stays, and is not looked at any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
