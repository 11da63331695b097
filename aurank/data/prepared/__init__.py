"""Images decoded and resized once, and read again and again: the store, and writing it."""
