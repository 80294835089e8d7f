"""What people read of a capture: a trace, its records and collections, lookups, and the tensors behind them.

``view`` holds a stream with its tables; ``records`` are rows of those, ``accessors`` the collections, ``lookup`` the
order in which ``trace[...]`` tries a key; ``facade`` is the trace, over all of them. Nothing here knows how
a capture is made.
"""
