"""Going through a capture event by event, forwards and backwards, and asking it things on the way.

cursor.py is the way in. The folder reads: it knows nothing of how captures are made, and reading/ knows nothing of it.
"""
