"""Runs a pair on calibration prompts and, where it fails, says why. Needs torch."""

from tandem_worker.probe.run import probe

__all__ = ["probe"]
