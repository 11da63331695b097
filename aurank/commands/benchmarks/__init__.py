"""Methods compared by many trainings."""
