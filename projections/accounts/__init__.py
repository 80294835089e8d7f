"""Accounts of whole captures, from their tables: alignment, sums by module, how one ended, which are the same."""
