"""The Python interface for data: functions that filter, forecast and check frames, arrays and files, and live
streams.
"""
