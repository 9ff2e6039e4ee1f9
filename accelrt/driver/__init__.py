"""The seam: one driver table, two devices that fill it."""
