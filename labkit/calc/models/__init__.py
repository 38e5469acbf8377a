"""Models by their configuration, and how many parameters they have."""
