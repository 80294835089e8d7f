"""Journals as people open them: the captures in one, how each ended, and records folded anew and compared.

What a journal is, and how it is written, is the package ``journal``.
"""
