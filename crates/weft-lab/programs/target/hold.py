"""Writes to an iSCSI unit by QEMU's tools, and reads the same back in the same session when a file has appeared."""

import os
import subprocess
import sys
import time

url, signal = sys.argv[1:]
process = subprocess.Popen(
    ["qemu-io", "-f", "raw", "--cache", "none", url],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)


def do(command, done):
    process.stdin.write(command + "\n")
    process.stdin.flush()
    for line in process.stdout:
        print(line, end="", flush=True)
        if done in line:
            return
        if "failed" in line:
            break
    sys.exit(1)


do("write -P 7 0 64k", "wrote 65536")
while not os.path.exists(signal):
    time.sleep(0.01)
do("read -P 7 0 64k", "read 65536")
process.stdin.close()
process.wait()
