"""A cursor for people at a terminal: ``torchlens travel PATH``.

session.py is what can be said to it, a line at a time; screen.py shows it while it is moved by keys. The folder
reads: it knows nothing of how captures are made.
"""
