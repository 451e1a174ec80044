"""Jobs and stages of filter requests and live streams."""
