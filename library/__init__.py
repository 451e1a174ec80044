"""Python functions that filter, forecast and check data frames, arrays and files, and filters for live streams."""
