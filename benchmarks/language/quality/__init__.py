"""The language models of the papers compared with rotary attention."""
