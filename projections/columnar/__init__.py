"""Columnar tables: columns made on first read, what a cell may be, its canonical bytes, and those bytes read."""
