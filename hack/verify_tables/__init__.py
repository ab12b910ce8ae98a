"""Holds the tables in `tandem_worker/engines/` to what the engines' own published code does.

For each version that a table lists, the wheel is fetched and its own functions and classes are run on small configs:
the capture hook of every target class, the reading of layer ids, the drafter's classes with their `load_weights`. What
they do is written in the tables' words and compared. Nothing of the engines' dependencies is installed: what their code
imports is replaced by stand-ins, and layers by ones that have parameters of the right shape and no arithmetic.

`speculators` does the same for the one other library that reads drafters: its config classes and its converter.
"""
