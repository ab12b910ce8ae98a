"""The project's own set-up: one virtual environment in the user's cache, for every checkout that needs the same one.

Only the standard library is used here, because this runs before anything is installed. The environment holds the
dependencies and nothing of the project: each checkout puts its own folders on PYTHONPATH, so that two checkouts can
share an environment and still run their own code.
"""
