"""The language models of the papers against rotary attention."""
