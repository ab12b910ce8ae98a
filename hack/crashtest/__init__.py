"""Faults between the operator and the API server, and deaths of the operator at any of its writes."""
