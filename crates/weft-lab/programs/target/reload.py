"""Reloads the file of a target while initiators have sessions, and checks what each of them sees.

Arguments: the command, a directory, the portal and the name of the target.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import libiscsi

CHECK_CONDITION = 2
LUNS_CHANGED, NEW_UNIT, NO_UNIT = "0x3f0e", "0x2900", "0x2500"
RELOADS = 40

weft, directory, portal, target = sys.argv[1:]
second = target + "2"
path = os.path.join(directory, "target.toml")
control = os.path.join(directory, "control")


def write_file(*units, targets="", top="", rules=""):
    """Writes the file. Each unit is the lines of its table."""
    tables = "".join(f"[[target.unit]]\n{unit}\n" for unit in units)
    with open(path, "w") as file:
        file.write(f'listen = ["{portal}"]\ncontrol = "control"\n{top}\n'
                   f'[[target]]\nname = "{target}"\n{rules}\n{tables}{targets}')


def ask(verb, *arguments):
    """Returns the status of a verb, and what it has printed."""
    command = [weft, "target", verb, "--control", control, *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.returncode, ended.stdout


def check(condition, text):
    if not condition:
        sys.exit(text)


def reload(*arguments):
    status, printed = ask("reload", *arguments)
    check(status == 0, printed)
    return printed


def units():
    return [(each["target"], each["lun"]) for each in json.loads(ask("list", "--json")[1])]


def login(name, to=target, lun=0):
    return libiscsi.Initiator(f"iqn.2026-01.org.example:{name}", portal, to, lun)


def refused(act, code):
    """The act fails with sense data of this code."""
    try:
        act()
    except libiscsi.Failed as failed:
        check(failed.status == CHECK_CONDITION and code in str(failed), f"not {code}: {failed}")
    else:
        sys.exit(f"no failure with {code}")


def no_login(name, text, **to):
    try:
        login(name, **to)
    except libiscsi.Failed as failed:
        check(text in str(failed), f"not {text!r}: {failed}")
    else:
        sys.exit(f"{name} has logged in")


DISK, MEMORY = 'store = "disk"\nlun = 0', 'store = "ram:1M"\nlun = 1'
SECOND = f'[[target]]\nname = "{second}"\n[[target.unit]]\nstore = "ram:2M"\n'
ONE, OTHER, THIRD = (bytes([number]) * 4096 for number in (1, 2, 3))


def units_come(holder):
    write_file(DISK, MEMORY, targets=SECOND)
    expected = f"added {target}/1  ram:1048576\nadded {second}/0  ram:2097152\n"
    check(reload("--dry-run") == expected, "another dry run")
    check(units() == [(target, 0)], "a dry run has changed something")
    check(holder.read(0, 4096) == ONE, "another content")
    check(reload() == expected, "other changes")
    refused(lambda: holder.write(0, ONE), LUNS_CHANGED)
    holder.write(0, ONE)
    holder.lun = 1
    refused(lambda: holder.write(0, OTHER), NEW_UNIT)
    holder.write(0, OTHER)
    check(holder.read(0, 4096) == OTHER, "another content in the new unit")
    holder.lun = 0
    check(reload() == "", "a file without changes has changed something")
    check(holder.read(0, 4096) == ONE, "another content")


def wrong_files_change_nothing(holder):
    before = units()
    for arguments, text in [
        ((DISK, 'store = "ram:1X"\nlun = 1'), "no unit: X"),
        ((DISK, MEMORY, 'store = "ram:1M"\nlun = 300'), "from 0 to 255"),
        ((DISK, MEMORY, 'store = "ram:1M"\nlun = 2', 'store = "missing"\nlun = 3'), "No such file"),
        (('store = "ram:1M"\nlun = 0', MEMORY), "give the other one another number"),
        ((DISK + "\nread-only = true", MEMORY), "another value of `read-only`"),
        ((DISK, 'store = "ram:9M"\nlun = 1'), "weft target resize"),
    ]:
        write_file(*arguments)
        status, printed = ask("reload")
        check(status == 1 and text in printed and "nothing has changed" in printed, printed)
    write_file(DISK, MEMORY, targets=SECOND, top="loops = 77\ndrain-time = 77")
    status, printed = ask("reload")
    check(status == 1 and "drain-time" in printed and "loops" in printed, printed)
    os.unlink(path)
    os.mkfifo(path)
    status, printed = ask("reload")
    check(status == 1 and "not a regular file" in printed, printed)
    os.unlink(path)
    check(units() == before, "a wrong file has changed units")
    # No unit attention either.
    check(holder.read(0, 4096) == ONE, "another content")


def units_go(holder, other):
    added = ask("add", "--name", target, "null:1M,lun=9")
    check(added[0] == 0, added[1])
    refused(lambda: holder.read(0, 4096), LUNS_CHANGED)
    write_file(DISK)
    expected = (f"removed {target}/1  ram:1048576\nremoved {target}/9  null:1048576\n"
                f"removed {second}/0  ram:2097152\n")
    check(reload() == expected, "other changes")
    refused(lambda: holder.read(0, 4096), LUNS_CHANGED)
    check(holder.read(0, 4096) == ONE, "another content")
    holder.lun = 1
    refused(lambda: holder.read(0, 4096), NO_UNIT)
    holder.lun = 0
    # A session with a target that is gone has no unit, and is the last one.
    refused(lambda: other.read(0, 4096), NO_UNIT)
    no_login("late", "Target not found", to=second)
    check(units() == [(target, 0)], "units are left")


def hangup(target_process, expected):
    target_process.send_signal(signal.SIGHUP)
    for line in target_process.stdout:
        if "reloaded" in line or "nothing has changed" in line:
            check(expected in line, line)
            return
    sys.exit("the target has ended")


def rules_are_for_later_logins(holder, target_process):
    write_file(DISK, rules='initiators = ["iqn.2026-01.org.example:late"]')
    hangup(target_process, "reloaded: 0 added, 0 removed")
    no_login("holder2", "Authorization failure")
    with login("late"):
        check(holder.read(0, 4096) == ONE, "another content")
    write_file(DISK, rules="loops = true")
    hangup(target_process, "nothing has changed")
    no_login("holder2", "Authorization failure")
    write_file(DISK)
    reload()
    with login("holder2"):
        pass


def row(answer, operation):
    return next(each for each in json.loads(answer)["units"] if each["operation"] == operation)


def check_top(failures):
    """Initiators are seen at work, and each command is in the histogram."""
    while not failures:
        status, printed = ask("top", "--json", "--interval", "0.1")
        check(status == 0, printed)
        read, write = row(printed, "read"), row(printed, "write")
        if read["commands"] > 0 and write["commands"] > 0:
            check(write["bytes"] == write["commands"] * 4096 and write["failed"] == 0, printed)
            check(0 < write["p50"] <= write["p99"] <= write["p99.9"], printed)
            check(len(json.loads(printed)["sessions"]) >= 2, printed)
            break
    write = row(ask("stats", "--json")[1], "write")
    counted = sum(bucket["commands"] for bucket in write["histogram"])
    check(counted == write["commands"] and write["time_ns"] > 0, f"{write}")
    # Into a pipe, one interval follows the other, until nobody reads.
    live = subprocess.Popen([weft, "target", "top", "--control", control, "--interval", "0.1"],
                            stdout=subprocess.PIPE, text=True)
    shown = [line for line, _ in zip(live.stdout, range(20)) if "COMMANDS/S" in line]
    live.stdout.close()
    check(live.wait() == 0 and len(shown) >= 2, f"{shown}")


def sessions_outlive_many_reloads():
    """Two initiators write and read, and see each change by one unit attention."""
    is_over, writes, attentions, failures = threading.Event(), [0, 0], [0, 0], []

    def write_once(initiator, number):
        block, data = 64 * (1 + number), bytes([writes[number] % 256]) * 4096
        try:
            initiator.write(block, data)
            if initiator.read(block, 4096) != data:
                raise libiscsi.Failed("another content")
            writes[number] += 1
        except libiscsi.Failed as failed:
            if LUNS_CHANGED not in str(failed):
                raise
            attentions[number] += 1

    def use(number):
        try:
            with login(f"writer{number}") as initiator:
                while not is_over.is_set():
                    write_once(initiator, number)
        except libiscsi.Failed as failed:
            failures.append(f"writer {number}: {failed}")

    def wait(counts, least):
        while min(counts) < least and not failures:
            time.sleep(0.001)

    writers = [threading.Thread(target=use, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    wait(writes, 1)
    for count in range(RELOADS):
        write_file(DISK, *[MEMORY] * (count % 2 == 0))
        reload()
        wait(attentions, count + 1)
    check_top(failures)
    is_over.set()
    for writer in writers:
        writer.join()
    check(not failures, "; ".join(failures))
    check(attentions == [RELOADS] * 2, f"{attentions} attentions")


def main():
    with open(os.path.join(directory, "disk"), "wb") as disk:
        disk.truncate(1 << 20)
    write_file(DISK)
    serve = [weft, "target", "serve", "--config", path]
    process = subprocess.Popen(
        serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
    try:
        for line in process.stdout:
            if line.startswith("listening"):
                break
        with login("holder") as holder:
            holder.write(0, ONE)
            units_come(holder)
            with login("other", to=second) as other:
                other.write(0, THIRD)
                wrong_files_change_nothing(holder)
                units_go(holder, other)
            rules_are_for_later_logins(holder, process)
            sessions_outlive_many_reloads()
        check(ask("drain")[0] == 0 and process.wait(240) == 0, "the target has not ended in order")
        print("all reloads are done")
    finally:
        process.kill()


main()
