"""A kernel whose compiler ends without an answer: this module ends any process that does not interpret."""

from __future__ import annotations

import os

import triton

if os.environ.get("TRITON_INTERPRET") != "1":
    print("Assertion `false' failed.", file=os.fdopen(2, "w"), flush=True)
    os._exit(41)


@triton.jit
def fatal(x_ptr, out_ptr, n):
    return
