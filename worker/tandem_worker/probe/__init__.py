"""Runs a pair on calibration texts under every wiring it may be meant for, and says which one is wrong."""
