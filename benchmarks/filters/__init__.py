"""The filters against exact and public ones: accuracy, intervals, what is normal."""
