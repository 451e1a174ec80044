"""The series network, processed one row at a time.

The network reads a series on a regular grid, whose step is the typical lag of the stream. A step of this grid is called
a cell; it contains one row or is empty. PATCH cells form a patch.
"""
