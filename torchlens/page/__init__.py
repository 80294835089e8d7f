"""A trace as one HTML page that needs no server and no network.

``data`` makes the data of the page, with ``values`` (statistics) and ``places`` (lines of source); ``writing`` puts
them with the built front end (``front/``) into one file. ``docs/page.md`` has the form of the data.
"""
