"""How many bytes does training of a language model send to reach the same loss, with DiLoCo and with plain DDP?

bench-diloco: ddp-train's gpt on generated text, four workers, the same seed, text and inner optimizer for all, STEPS steps. A line
for each way has "points", [step, megabytes that each worker gave to averages, loss on held-out text in nats per byte]. The
figures compare the bytes sent until the loss is at most TARGET for the first time: plain DDP's last loss, plus a hundredth.

Seed, batch and inner AdamW suit DDP; nothing is tuned for DiLoCo.
"""
import os

import harness
import paired

DILOCO = str(harness.BIN / "bench-diloco")
WORKERS = 4
STEPS, EVERY = (48, 12) if paired.QUICK else (960, 24)
WAYS = {"DDP": "ddp", "DiLoCo, H = 12": "diloco:12:1:0:0:f32", "DiLoCo, H = 24": "diloco:24:1:0:0:f32",
        "DiLoCo, H = 24, bf16": "diloco:24:1:0:0:bf16", "DiLoCo, H = 48": "diloco:48:1:0:0:f32",
        "streaming DiLoCo, H = 24, 3 fragments, delay 2, alpha 0.5": "diloco:24:3:2:0.5:f32"}
LIMIT_S = 600
MB = 1e6
TOLERANCE = 1.01


def train(way):
    command = [harness.DDP_RUN, "--standalone", "--nproc-per-node", str(WORKERS), "--no-python", DILOCO, way, str(STEPS), str(EVERY)]
    return [[line["step"], round(line["bytes"] / MB, 3), line["loss"]] for line in paired.run_all([(command, {})], limit_s=LIMIT_S)]


def sent_until(points, target):
    return next((sent for _, sent, loss in points if loss <= target), None)


def figures():
    harness.require(harness.DDP_RUN, DILOCO)
    curves = {}
    for name, way in WAYS.items():
        curves[name] = points = train(way)
        yield {"figure": f"curve, gpt, {WORKERS} workers, {name}", "ours": points[-1][2], "peer": None, "peer_name": None, "ratio": None,
               "unit": "nats/byte", "goal": None, "points": points}
    target = TOLERANCE * curves["DDP"][-1][2]
    plain = sent_until(curves["DDP"], target)
    for name, points in curves.items():
        sent = sent_until(points, target)
        if name == "DDP":
            continue
        yield {"figure": f"megabytes until the loss is {target:.3f}, {name}", "ours": sent, "peer": plain, "peer_name": "DDP",
               "ratio": round(plain / sent, 2) if sent else None, "unit": "MB", "goal": None, "final_loss": points[-1][2]}
