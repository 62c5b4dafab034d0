"""Standard attention as three kernels: S = q·kᵀ·scale to memory, P = softmax(S) to memory, O = P·v.

Grids as in the simulator's `naive` program: `qk` one program per tile of S, key tiles fastest; `softmax` one per row;
`pv` one per BLOCK_M rows of O. S and P are `(batch, heads, seq_q, seq_k)`, contiguous, in the input dtype.
"""

# Argument lists stay in groups that belong together.
# fmt: off
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["group", "heads", "seq_q"])
def qk_kernel(
    q_ptr, k_ptr, s_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
    group, heads, seq_q, seq_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, IEEE: tl.constexpr, WIDE: tl.constexpr,
):
    """One tile of S = q·kᵀ·scale; with CAUSAL, -inf above the bottom-right diagonal."""
    j = tl.program_id(0)
    # The grid has three axes, so heads and batches share the third.
    i = tl.program_id(1)
    head = tl.program_id(2).to(tl.int64) % heads
    batch = tl.program_id(2).to(tl.int64) // heads
    m_in = tl.arange(0, BLOCK_M)
    n_in = tl.arange(0, BLOCK_N)
    d_in = tl.arange(0, BLOCK_D)
    row = i * BLOCK_M + m_in
    col = j * BLOCK_N + n_in
    if WIDE:
        m_in = m_in.to(tl.int64)
        n_in = n_in.to(tl.int64)
        d_in = d_in.to(tl.int64)
    row_start = (i * BLOCK_M).to(tl.int64)
    col_start = (j * BLOCK_N).to(tl.int64)
    d_ok = d_in < HEAD_DIM
    precision: tl.constexpr = "ieee" if IEEE else "tf32"
    q = tl.load(
        q_ptr + batch * q_batch + head * q_head + row_start * q_row + (m_in[:, None] * q_row + d_in[None, :] * q_col),
        mask=(row < seq_q)[:, None] & d_ok[None, :], other=0.0,
    )
    k = tl.load(
        k_ptr + batch * k_batch + (head // group) * k_head + col_start * k_row
        + (n_in[None, :] * k_row + d_in[:, None] * k_col),
        mask=d_ok[:, None] & (col < seq_k)[None, :], other=0.0,
    )
    s = tl.dot(q, k, input_precision=precision) * scale
    if CAUSAL:
        s = tl.where(col[None, :] <= row[:, None] + (seq_k - seq_q), s, -float("inf"))
    start = ((batch * heads + head) * seq_q + row_start) * seq_k + col_start
    inside = (tl.arange(0, BLOCK_M)[:, None]).to(tl.int64) * seq_k + tl.arange(0, BLOCK_N)[None, :]
    tl.store(
        s_ptr + start + inside, s.to(s_ptr.dtype.element_ty),
        mask=(row < seq_q)[:, None] & (col < seq_k)[None, :],
    )


@triton.jit
def softmax_kernel(s_ptr, p_ptr, lse_ptr, seq_k, COLUMNS: tl.constexpr, STORE_LSE: tl.constexpr):
    """P = softmax(S) for one whole row."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, COLUMNS)
    s = tl.load(s_ptr + row * seq_k + col, mask=col < seq_k, other=-float("inf")).to(tl.float32)
    m = tl.max(s, 0)
    safe = tl.where(m == -float("inf"), 0.0, m)
    e = tl.exp2((s - safe) * LOG2E)
    l = tl.sum(e, 0)
    divisor = tl.where(l == 0.0, 1.0, l)
    p = e / divisor
    tl.store(p_ptr + row * seq_k + col, p.to(p_ptr.dtype.element_ty), mask=col < seq_k)
    if STORE_LSE:
        tl.store(lse_ptr + row, tl.where(l == 0.0, -float("inf"), safe + tl.log2(divisor) * LN2))


@triton.jit
def softmax_two_pass_kernel(s_ptr, p_ptr, lse_ptr, seq_k, CHUNK: tl.constexpr, STORE_LSE: tl.constexpr):
    """P = softmax(S) for one row too long to hold: once over S for m and l, once more for P."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHUNK)
    m = -float("inf")
    l = 0.0
    for start in tl.range(0, seq_k, CHUNK):
        col = start + lane
        s = tl.load(s_ptr + row * seq_k + col, mask=col < seq_k, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(m, tl.max(s, 0))
        safe = tl.where(larger == -float("inf"), 0.0, larger)
        l = l * tl.exp2((m - safe) * LOG2E) + tl.sum(tl.exp2((s - safe) * LOG2E), 0)
        m = larger
    safe = tl.where(m == -float("inf"), 0.0, m)
    divisor = tl.where(l == 0.0, 1.0, l)
    for start in tl.range(0, seq_k, CHUNK):
        col = start + lane
        s = tl.load(s_ptr + row * seq_k + col, mask=col < seq_k, other=-float("inf")).to(tl.float32)
        p = tl.exp2((s - safe) * LOG2E) / divisor
        tl.store(p_ptr + row * seq_k + col, p.to(p_ptr.dtype.element_ty), mask=col < seq_k)
    if STORE_LSE:
        tl.store(lse_ptr + row, tl.where(l == 0.0, -float("inf"), safe + tl.log2(divisor) * LN2))


@triton.jit(do_not_specialize=["group", "heads", "seq_q"])
def pv_kernel(
    p_ptr, v_ptr, o_ptr,
    v_batch, v_head, v_row, v_col, o_batch, o_head, o_row, o_col,
    group, heads, seq_q, seq_k,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, IEEE: tl.constexpr, WIDE: tl.constexpr,
):
    """BLOCK_M rows of O = P·v, streaming P and v in BLOCK_N steps."""
    i = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    m_in = tl.arange(0, BLOCK_M)
    n_in = tl.arange(0, BLOCK_N)
    d_in = tl.arange(0, BLOCK_D)
    row = i * BLOCK_M + m_in
    p_start = p_ptr + ((batch * heads + head) * seq_q + (i * BLOCK_M).to(tl.int64)) * seq_k
    p_inside = m_in[:, None].to(tl.int64) * seq_k + n_in[None, :]
    if WIDE:
        m_in = m_in.to(tl.int64)
        n_in = n_in.to(tl.int64)
        d_in = d_in.to(tl.int64)
    d_ok = d_in < HEAD_DIM
    row_ok = row < seq_q
    precision: tl.constexpr = "ieee" if IEEE else "tf32"
    v_tile = v_ptr + batch * v_batch + (head // group) * v_head + (n_in[:, None] * v_row + d_in[None, :] * v_col)
    o = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for j in tl.range(0, seq_k, BLOCK_N, num_stages=STAGES):
        col_ok = j + tl.arange(0, BLOCK_N) < seq_k
        p = tl.load(p_start + j + p_inside, mask=row_ok[:, None] & col_ok[None, :], other=0.0)
        v = tl.load(v_tile + tl.cast(j, tl.int64) * v_row, mask=col_ok[:, None] & d_ok[None, :], other=0.0)
        o = tl.dot(p, v, o, input_precision=precision)
    tl.store(
        o_ptr + batch * o_batch + head * o_head + (i * BLOCK_M).to(tl.int64) * o_row
        + (m_in[:, None] * o_row + d_in[None, :] * o_col),
        o.to(o_ptr.dtype.element_ty), mask=row_ok[:, None] & d_ok[None, :],
    )
