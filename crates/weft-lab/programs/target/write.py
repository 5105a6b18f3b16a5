"""Writes blocks one after the other to an iSCSI unit, by QEMU's tools, until the target is gone, and says which are complete."""

import subprocess
import sys

BLOCK = 64 << 10

process = subprocess.Popen(
    ["qemu-io", "-f", "raw", "--cache", "none", sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
for number in range(1000):
    try:
        process.stdin.write(f"write -P {1 + number % 255} {number * BLOCK} {BLOCK}\n")
        process.stdin.flush()
    except BrokenPipeError:
        break
    while True:
        line = process.stdout.readline()
        if not line or "wrote" in line or "failed" in line:
            break
    if "wrote" not in line:
        break
    print("written", number, flush=True)
process.kill()
