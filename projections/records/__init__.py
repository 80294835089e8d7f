"""Columns of every table: what each record says, one file for each table or for each kind of fact."""
