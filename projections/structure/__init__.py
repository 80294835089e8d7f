"""What the forward is, from the folds: rows, layers and labels, conditionals, reach, memory, the program."""
