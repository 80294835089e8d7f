"""Selectors: questions about ops and gradients that can be asked of any trace; elements and value queries."""
