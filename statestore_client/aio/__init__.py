"""The asyncio client: any number of tasks of one event loop may share one."""
