"""Recorded calls made again: their arguments from templates and kept values, their memory as it lay."""
