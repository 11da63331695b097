"""Which rows make each batch."""
