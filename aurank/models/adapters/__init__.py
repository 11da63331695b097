"""Models of other libraries with the preprocessing that they expect."""
