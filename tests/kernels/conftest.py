"""The kernels in Triton's interpreter: no GPU. The variable must be set before triton sees a kernel."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
# Triton 3.9 warns where this is unset.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
