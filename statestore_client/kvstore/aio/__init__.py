"""The asyncio client of a site."""
