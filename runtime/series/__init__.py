"""The series network, one row at a time."""
