"""An engine simulator: stands in for `tandem-worker serve`, SGLang's server or `vllm serve` where a test is about the
operator.

Real endpoints, real metric names, invented acceptance. What it does is told by SIM_* variables (see
`simulator.behaviour`) and, while it runs, by `POST /sim`.
"""
