"""Folds: how events, taken in order, become state; one file for each part of the state."""
