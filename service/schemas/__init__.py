"""The JSON of every route: requests are validated by pydantic models, replies are plain dataclasses."""
