"""Series as an engineer on call sees them, labelled before the rules of alarms were run on them."""
