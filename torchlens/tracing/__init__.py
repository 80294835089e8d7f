"""One capture driven: a request, the run under ``torchlens.capture``, the ways it may end, and verbs over it.

It sees both the write side and the read side, as ``torchlens.running`` does, and neither of them sees it.
"""
