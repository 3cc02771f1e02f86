"""From a file to deltas."""
