"""The SDK: asyncio agents on a bus. `gagent_grpc` shows what is public."""
