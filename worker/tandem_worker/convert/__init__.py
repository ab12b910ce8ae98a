"""A corrected copy of a drafter for one engine, where the correction follows from the files and is no guess."""

from tandem_worker.convert.convert import Converted, Refused, convert

__all__ = ["Converted", "Refused", "convert"]
