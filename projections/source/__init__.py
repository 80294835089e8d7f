"""What the source text of the user says: call sites, and the syntax of the functions that were called."""
