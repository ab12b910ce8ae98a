"""Row-invariant kernels for decode, verify and prefill, one file each.

*Row-invariant*: the bits of a row's result do not depend on how many rows share the launch, where the row sits among
them, or whether it is a prompt's row, a decoded row or a row of a verification. Three rules give that:

    products    every output is one ascending chain of 16-wide steps over k for each of a fixed number of K splits, from
                a zero accumulator in float32; the tile that computes it may be chosen freely (see `gemm`)
    sums        over a row run in one layout: their number of warps is a constant here and no tuner may touch it
    attention   one fixed tree over absolute positions (see `attention`)

On a Hopper GPU, mma.sync and wgmma gave the same float32 bits wherever it was measured. That is not documented by
anybody, so `make gpu-check` compares exact bits. Triton's interpreter on a CPU proves indices and masks only.

Everything is asynchronous on the current stream. Shapes: M rows, H hidden size, Hq query heads, Hk key and value heads,
G = Hq / Hk, D head size, B requests, T rows of each.
"""
