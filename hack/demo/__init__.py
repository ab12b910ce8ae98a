"""The demo: four acts on a real API server, each judged by what the server says afterwards.

`python -m demo` starts a local cluster with the operator in it and plays them; `make demo` is the way to run it.
"""
