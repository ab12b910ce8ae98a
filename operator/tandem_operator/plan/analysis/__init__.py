"""From what pods count to a verdict on a revision. Pure: no clock, no I/O, no state but what is handed in and out.

evidence       raw counters of pods -> increments -> windows of one revision
design_effect  how much less drafts of the same request tell than independent ones
sequential     tests that may be looked at as often as one likes: SPRT (gate), CUSUM (steady state)
hypotheses     what is healthy and what is collapsed: the user's floor, and a baseline
speed          is it faster than the target alone, at like batch size
judge          the rules, in their order -> a Measurement with the numbers that made it
"""
