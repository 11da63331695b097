"""What is missing, broken or odd in a data set, found before a long run finds it."""
