"""The promises that records keep, each one a named function."""
