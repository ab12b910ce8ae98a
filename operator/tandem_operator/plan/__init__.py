"""`plan(context) -> Plan`: pure and total. No kubernetes, no kopf, no clock, no I/O."""

from tandem_operator.plan.decision import Plan
from tandem_operator.plan.observed import Context, Observed, Settings
from tandem_operator.plan.planner import plan

__all__ = ["Context", "Observed", "Plan", "Settings", "plan"]
