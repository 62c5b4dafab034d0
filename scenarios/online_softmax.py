"""How can softmax be taken block by block, when its maximum and sum are known only at the end?"""

import math
from textwrap import fill

import numpy as np

from memsim import Attention, Tile, compute
from memsim.numerics import Step

# (batch, heads, seq, head_dim). V is one wide; its second column only fills it up to head_dim.
Q = np.array([[[[1, 2]]]], dtype=np.float32)
K = np.array([[[[0, 1], [1, 0], [1, 1], [1, 0]]]], dtype=np.float32)
V = np.array([[[[4, 0], [5, 0], [6, 0], [7, 0]]]], dtype=np.float32)
PROBLEM = Attention(heads=1, seq_len_q=1, seq_len_k=4, head_dim=2, dtype="float32", scale=1.0)


def main() -> None:
    blocks: list[dict[str, np.ndarray]] = []

    def watch(step: Step) -> None:
        if (step.operation, step.name) == ("dot", "S"):
            blocks.append({"S": step.values[0]})
        elif step.operation == "exp":
            blocks[-1]["weights" if step.name == "S" else "factor"] = step.values.ravel()
        elif (step.operation, step.name) in (("assign", "m"), ("add", "l"), ("dot", "O")):
            blocks[-1].setdefault(step.name, step.values.ravel()[0])

    o, _ = compute("flash", PROBLEM, Q, K, V, gpu="two-level", tile=Tile(block_m=1, block_n=2), watch=watch)

    print("q = [1, 2], no scaling, float32; K and V pass once, in blocks of two keys. For each block:")
    print("S = q K^T;  m = max(m before, S);  factor = e^(m before - m);  weights = e^(S - m);")
    print("l = l before * factor + sum of weights;  O = O before * factor + weights V.\n")
    print("block  K                 V       S       m  factor  weights         l      O")
    for j, b in enumerate(blocks):
        keys, values = (str(x[0, 0, 2 * j : 2 * j + 2].astype(int).tolist()) for x in (K, V[..., 0]))
        weights = ", ".join(f"{w:.3f}" for w in b["weights"])
        print(f"{j + 1:5}  {keys:16}  {values:6}  {b['S'].astype(int).tolist()!s:6}  {b['m']:.0f}", end="  ")
        print(f"{b['factor'][0]:6.3f}  {weights}  {b['l']:.3f}  {b['O']:.3f}")

    online = float(o[0, 0, 0, 0])
    exps = np.exp(K[0, 0].astype(np.float64) @ Q[0, 0, 0])
    whole = float(exps @ V[0, 0, :, 0] / exps.sum())
    print(f"\nO / l = {online:.3f}. Softmax of the whole row [2, 1, 3, 1] at once, in float64: {whole:.3f}.")

    e1, e2 = round(math.exp(-1), 3), round(math.exp(-2), 3)
    o1, l2 = 4 + 5 * e1, (1 + e1) * e1 + 1 + e2
    o2 = o1 * e1 + 6 + 7 * e2
    print(f"The article that this example is from rounds each exponential first ({e1}, {e2}), and so has")
    print(f"O = {o1:.3f} after block 1, l = {l2:.3f} and O = {o2:.3f} after block 2, and O / l = {o2 / l2:.3f}.")
    agrees = "equals" if f"{online:.3f}" == f"{whole:.3f}" else f"is {abs(online - whole):.3f} off"
    answer = "a block with a larger maximum multiplies what was summed before by e^(old - new), here "
    answer += f"{blocks[-1]['factor'][0]:.3f}, and the result, {online:.3f}, {agrees} that of the whole row at once."
    print("\n" + fill(f"Answer: {answer}", 110))


if __name__ == "__main__":
    main()
