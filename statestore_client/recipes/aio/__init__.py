"""With asyncio."""
