"""The blocking client of a site."""
