"""Fixed requests over every endpoint, recorded from one version of the server and compared with another.

`python -m tests.conformance record FILE` starts the server of this checkout and records its replies;
`python -m tests.conformance compare FILE` shows where the replies of this checkout differ. `--code` starts
the server of another checkout. `--url` names a running one, which needs the settings in `server.py`.
"""
