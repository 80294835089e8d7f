"""One capture driven: a request, the run under ``torchlens.capture``, the ways it may end, and verbs over it.

The only place that sees both the writing side and the projections.
"""
