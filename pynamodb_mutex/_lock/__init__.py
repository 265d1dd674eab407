"""The heart: one plain lock, acquired, renewed, lost and released. It knows of no room."""
