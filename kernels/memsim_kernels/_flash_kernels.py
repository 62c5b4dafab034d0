"""The FlashAttention forward kernels: S and P stay in registers, Q and the K/V ring in shared memory.

One unit of work is BLOCK_M rows of one head: Q is loaded once, K and V stream past it in BLOCK_N rows, softmax runs
online in base 2 (exp2 is one MUFU instruction). Rows fast, the grid's first axis runs over row blocks, the second over
heads, the third over batches, as in the simulator's `flash` program; in the other orders of `memsim.grid` it has one
axis.
"""

# Argument lists stay in groups that belong together.
# fmt: off
import triton
import triton.language as tl

# One compiled kernel serves all lengths: no address depends on them but the LSE's.
LENGTHS = ["group", "heads", "seq_q", "seq_k"]
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _online_softmax(
    s, m, l, o, row, col, seq_k, shift, qk_scale,
    CAUSAL: tl.constexpr, TAIL: tl.constexpr, SCALE_FIRST: tl.constexpr,
):
    """Fold one tile of raw scores into the running m (base 2, scaled), l and o; returns the weights and the three."""
    if SCALE_FIRST:
        # A scale of 0 or below would turn the mask's -inf into NaN or +inf.
        s = s * qk_scale
    if TAIL:
        s = tl.where(col[None, :] < seq_k, s, -float("inf"))
    if CAUSAL:
        s = tl.where(col[None, :] <= row[:, None] + shift, s, -float("inf"))
    if SCALE_FIRST:
        larger = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(larger == -float("inf"), 0.0, larger)
        p = tl.exp2(s - safe[:, None])
    else:
        larger = tl.maximum(m, tl.max(s, 1) * qk_scale)
        safe = tl.where(larger == -float("inf"), 0.0, larger)
        p = tl.exp2(s * qk_scale - safe[:, None])
    factor = tl.exp2(m - safe)
    l = l * factor + tl.sum(p, 1)
    o = o * factor[:, None]
    return p, larger, l, o


@triton.jit
def _key_limits(i, seq_q, seq_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """(keys up to which no tile needs a mask, a multiple of BLOCK_N; keys to visit)."""
    stop = seq_k
    whole = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        shift = seq_k - seq_q
        last = tl.minimum((i + 1) * BLOCK_M, seq_q)
        stop = tl.minimum(tl.maximum(last + shift, 0), seq_k)
        # Row i·BLOCK_M, the first of the block, sees keys up to i·BLOCK_M + shift.
        whole = tl.minimum(tl.maximum(i * BLOCK_M + shift + 1, 0), seq_k) // BLOCK_N * BLOCK_N
    return whole, stop


@triton.jit
def _pointer_loop(
    q, m, l, o, k_tile, k_row, v_tile, v_row, row, d_ok, start, stop, seq_k, shift, qk_scale,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
    SCALE_FIRST: tl.constexpr, PRECISION: tl.constexpr,
):
    """Keys start to stop, tile by tile through pointers; without MASKED every key is there and seen."""
    for j in tl.range(start, stop, BLOCK_N, num_stages=STAGES):
        at = tl.cast(j, tl.int64)
        col = j + tl.arange(0, BLOCK_N)
        k_ok = d_ok[:, None]
        v_ok = d_ok[None, :]
        if MASKED:
            k_ok = k_ok & (col < seq_k)[None, :]
            v_ok = (col < seq_k)[:, None] & v_ok
        k = tl.load(k_tile + at * k_row, mask=k_ok, other=0.0)
        s = tl.dot(q, k, input_precision=PRECISION)
        p, m, l, o = _online_softmax(s, m, l, o, row, col, seq_k, shift, qk_scale, CAUSAL, MASKED, SCALE_FIRST)
        # Columns of P beyond the last key are 0, and 0 times whatever lies there need not be.
        v = tl.load(v_tile + at * v_row, mask=v_ok, other=0.0)
        o = tl.dot(p.to(v.dtype), v, o, input_precision=PRECISION)
    return m, l, o


@triton.jit
def _descriptor_loop(
    q, m, l, o, k_desc, v_desc, row, start, stop, seq_k, shift, qk_scale,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, TAIL: tl.constexpr, CAUSAL: tl.constexpr,
    SCALE_FIRST: tl.constexpr, SPECIALIZE: tl.constexpr,
):
    """Keys start to stop, tile by tile through descriptors, which load 0 beyond the last key."""
    for j in tl.range(start, stop, BLOCK_N, num_stages=STAGES, warp_specialize=SPECIALIZE):
        k = k_desc.load([j, 0])
        s = tl.dot(q, k.T)
        p, m, l, o = _online_softmax(
            s, m, l, o, row, j + tl.arange(0, BLOCK_N), seq_k, shift, qk_scale, CAUSAL, TAIL, SCALE_FIRST
        )
        v = v_desc.load([j, 0])
        o = tl.dot(p.to(v.dtype), v, o)
    return m, l, o


@triton.jit
def _unit_of_program(seq_q, heads, BLOCK_M: tl.constexpr, ORDER: tl.constexpr, PLANES: tl.constexpr):
    """(row block, head, batch) that this program works on, where it works on one."""
    if ORDER == "rows-fast":
        i = tl.program_id(0)
        head = tl.program_id(1).to(tl.int64)
        batch = tl.program_id(2).to(tl.int64)
    else:
        index = tl.program_id(0)
        rows = tl.cdiv(seq_q, BLOCK_M)
        planes = tl.num_programs(0) // rows
        if ORDER == "rows-reversed":
            i = rows - 1 - index % rows
            plane = index // rows
        elif ORDER == "heads-fast":
            i = index // planes
            plane = index % planes
        elif ORDER == "longest-first":
            i = rows - 1 - index // planes
            plane = index % planes
        else:
            tl.static_assert(ORDER == "head-sections")
            first = index // (rows * PLANES) * PLANES
            size = tl.minimum(PLANES, planes - first)
            rest = index - first * rows
            i = rows - 1 - rest // size
            plane = first + rest % size
        head = (plane % heads).to(tl.int64)
        batch = (plane // heads).to(tl.int64)
    return i, head, batch


@triton.jit
def _pointer_unit(
    i, head, batch, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
    v_batch, v_head, v_row, v_col, o_batch, o_head, o_row, o_col,
    group, heads, seq_q, seq_k, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, STORE_LSE: tl.constexpr,
    SCALE_FIRST: tl.constexpr, IEEE: tl.constexpr, WIDE: tl.constexpr,
):
    """Row block i of one head, through pointers."""
    row = i * BLOCK_M + tl.arange(0, BLOCK_M)
    # Offsets inside a tile fit in 32 bits unless a stride is enormous (WIDE); where a tile starts always takes 64.
    m_in = tl.arange(0, BLOCK_M)
    n_in = tl.arange(0, BLOCK_N)
    d_in = tl.arange(0, BLOCK_D)
    if WIDE:
        m_in = m_in.to(tl.int64)
        n_in = n_in.to(tl.int64)
        d_in = d_in.to(tl.int64)
    row_start = (i * BLOCK_M).to(tl.int64)
    d_ok = d_in < HEAD_DIM
    row_ok = row < seq_q
    precision: tl.constexpr = "ieee" if IEEE else "tf32"
    shift = seq_k - seq_q

    q = tl.load(
        q_ptr + batch * q_batch + head * q_head + row_start * q_row + (m_in[:, None] * q_row + d_in[None, :] * q_col),
        mask=row_ok[:, None] & d_ok[None, :], other=0.0,
    )
    k_tile = k_ptr + batch * k_batch + (head // group) * k_head + (n_in[None, :] * k_row + d_in[:, None] * k_col)
    v_tile = v_ptr + batch * v_batch + (head // group) * v_head + (n_in[:, None] * v_row + d_in[None, :] * v_col)

    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    whole, stop = _key_limits(i, seq_q, seq_k, BLOCK_M, BLOCK_N, CAUSAL)
    m, l, o = _pointer_loop(
        q, m, l, o, k_tile, k_row, v_tile, v_row, row, d_ok, 0, whole, seq_k, shift, qk_scale,
        BLOCK_N, STAGES, False, False, SCALE_FIRST, precision,
    )
    m, l, o = _pointer_loop(
        q, m, l, o, k_tile, k_row, v_tile, v_row, row, d_ok, whole, stop, seq_k, shift, qk_scale,
        BLOCK_N, STAGES, True, CAUSAL, SCALE_FIRST, precision,
    )

    o = o / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(
        o_ptr + batch * o_batch + head * o_head + row_start * o_row + (m_in[:, None] * o_row + d_in[None, :] * o_col),
        o.to(o_ptr.dtype.element_ty), mask=row_ok[:, None] & d_ok[None, :],
    )
    if STORE_LSE:
        lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(tl.where(l == 0.0, 1.0, l))) * LN2)
        tl.store(lse_ptr + (batch * heads + head) * seq_q + row, lse, mask=row_ok)


@triton.jit(do_not_specialize=LENGTHS)
def flash_pointer_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
    v_batch, v_head, v_row, v_col, o_batch, o_head, o_row, o_col,
    group, heads, seq_q, seq_k, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, STORE_LSE: tl.constexpr,
    SCALE_FIRST: tl.constexpr, IEEE: tl.constexpr, WIDE: tl.constexpr,
    ORDER: tl.constexpr, PLANES: tl.constexpr,
):
    """Loads through pointers: any strides, any lengths, any head_dim up to BLOCK_D.

    PLANES is how many (batch, head) planes there are in a section of heads, or, persistent, in all.
    """
    if ORDER == "persistent":
        rows = tl.cdiv(seq_q, BLOCK_M)
        # The loops over keys are the pipelined ones.
        for unit in tl.range(tl.program_id(0), rows * PLANES, tl.num_programs(0), num_stages=1):
            plane = (unit // rows).to(tl.int64)
            _pointer_unit(
                unit % rows, plane % heads, plane // heads, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
                q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
                v_batch, v_head, v_row, v_col, o_batch, o_head, o_row, o_col, group, heads, seq_q, seq_k, qk_scale,
                HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, CAUSAL, STORE_LSE, SCALE_FIRST, IEEE, WIDE,
            )
    else:
        i, head, batch = _unit_of_program(seq_q, heads, BLOCK_M, ORDER, PLANES)
        _pointer_unit(
            i, head, batch, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
            q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
            v_batch, v_head, v_row, v_col, o_batch, o_head, o_row, o_col, group, heads, seq_q, seq_k, qk_scale,
            HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, CAUSAL, STORE_LSE, SCALE_FIRST, IEEE, WIDE,
        )


@triton.jit
def _descriptor_unit(
    i, head, batch, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    group, heads, seq_q, seq_k, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, EVEN_KEYS: tl.constexpr,
    STORE_LSE: tl.constexpr, SCALE_FIRST: tl.constexpr, SPECIALIZE: tl.constexpr,
):
    """Row block i of one head, through tensor descriptors."""
    row = i * BLOCK_M + tl.arange(0, BLOCK_M)
    shift = seq_k - seq_q
    kv_head = head // group
    q_desc = tl.make_tensor_descriptor(
        q_ptr + batch * q_batch + head * q_head, [seq_q, HEAD_DIM], [q_row, 1], [BLOCK_M, BLOCK_D]
    )
    k_desc = tl.make_tensor_descriptor(
        k_ptr + batch * k_batch + kv_head * k_head, [seq_k, HEAD_DIM], [k_row, 1], [BLOCK_N, BLOCK_D]
    )
    v_desc = tl.make_tensor_descriptor(
        v_ptr + batch * v_batch + kv_head * v_head, [seq_k, HEAD_DIM], [v_row, 1], [BLOCK_N, BLOCK_D]
    )
    q = q_desc.load([i * BLOCK_M, 0])
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    whole, stop = _key_limits(i, seq_q, seq_k, BLOCK_M, BLOCK_N, CAUSAL)
    if SPECIALIZE:
        m, l, o = _descriptor_loop(
            q, m, l, o, k_desc, v_desc, row, 0, stop, seq_k, shift, qk_scale,
            BLOCK_N, STAGES, not EVEN_KEYS, CAUSAL, SCALE_FIRST, True,
        )
    else:
        m, l, o = _descriptor_loop(
            q, m, l, o, k_desc, v_desc, row, 0, whole, seq_k, shift, qk_scale,
            BLOCK_N, STAGES, False, False, SCALE_FIRST, False,
        )
        if CAUSAL or not EVEN_KEYS:
            m, l, o = _descriptor_loop(
                q, m, l, o, k_desc, v_desc, row, whole, stop, seq_k, shift, qk_scale,
                BLOCK_N, STAGES, not EVEN_KEYS, CAUSAL, SCALE_FIRST, False,
            )

    o = o / tl.where(l == 0.0, 1.0, l)[:, None]
    o_desc = tl.make_tensor_descriptor(
        o_ptr + batch * o_batch + head * o_head, [seq_q, HEAD_DIM], [o_row, 1], [BLOCK_M, BLOCK_D]
    )
    o_desc.store([i * BLOCK_M, 0], o.to(o_ptr.dtype.element_ty))
    if STORE_LSE:
        lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(tl.where(l == 0.0, 1.0, l))) * LN2)
        tl.store(lse_ptr + (batch * heads + head) * seq_q + row, lse, mask=row < seq_q)


@triton.jit(do_not_specialize=LENGTHS)
def flash_descriptor_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    group, heads, seq_q, seq_k, qk_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, CAUSAL: tl.constexpr, EVEN_KEYS: tl.constexpr,
    STORE_LSE: tl.constexpr, SCALE_FIRST: tl.constexpr, SPECIALIZE: tl.constexpr,
    ORDER: tl.constexpr, PLANES: tl.constexpr,
):
    """Loads through tensor descriptors (TMA): columns contiguous, rows a multiple of 16 bytes apart, 16-bit types.

    A warp-specialised kernel may have one loop only, so there every tile is masked where masks are needed at all.
    Warp-specialised with 128 rows, Triton 3.6 splits a block between two warpgroups but not what comes
    from `tl.arange` over its rows: a causal mask, a store through pointers and the LSE come out wrong (seen on an
    H200). So O is stored through a descriptor, and causal problems and LSE are not offered warp-specialised.
    """
    if ORDER == "persistent":
        tl.static_assert(not SPECIALIZE)
        rows = tl.cdiv(seq_q, BLOCK_M)
        for unit in tl.range(tl.program_id(0), rows * PLANES, tl.num_programs(0), num_stages=1):
            plane = (unit // rows).to(tl.int64)
            _descriptor_unit(
                unit % rows, plane % heads, plane // heads, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
                q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
                group, heads, seq_q, seq_k, qk_scale,
                HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, CAUSAL, EVEN_KEYS, STORE_LSE, SCALE_FIRST, SPECIALIZE,
            )
    else:
        i, head, batch = _unit_of_program(seq_q, heads, BLOCK_M, ORDER, PLANES)
        _descriptor_unit(
            i, head, batch, q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
            q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
            group, heads, seq_q, seq_k, qk_scale,
            HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, STAGES, CAUSAL, EVEN_KEYS, STORE_LSE, SCALE_FIRST, SPECIALIZE,
        )
