"""JSON schemas of all routes. Pydantic models validate the requests, and the replies are plain dataclasses."""
