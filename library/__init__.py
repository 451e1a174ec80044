"""What `import rfa` offers to people with data: frames and arrays filtered, forecast, watched; and live streams."""
