"""No unit test has a GPU: kernels run in Triton's interpreter, whichever test module is the first to import them."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
