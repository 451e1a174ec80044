"""The series network, processed one row at a time."""
