#!/usr/bin/env python3
"""Makes a small virtual machine with the kernel's soft iWARP (siw), of Debian's packages only.

    build.py --fetch FOLDER
    build.py FOLDER [PROGRAM...]

Debian's kernels come without siw. So its module is compiled here, of Debian's kernel sources and
against Debian's headers, to be loaded into Debian's unchanged kernel. Nothing is installed: the
first command fetches the packages of the kernel, of the iSCSI initiator and of what uses its disks
(XFS, the device mapper), and unpacks them in FOLDER/packages, unless they are there. `scripts/fetch` calls it. The second command uses no network. The programs of the guest
are those of this machine. Left in FOLDER are `vmlinux` and `initramfs`. PROGRAMs are put into the
guest's /bin, too. What is there already, made of the same files, stays.

Exit status 3 means that there is no machine, and no defect: the packages have not been fetched, or
they are of another kernel than the one tried, and the module cannot be made for that one.
"""

import fcntl
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")
# siw's own, and what moves bytes between the machine and this one.
# The checksums stand first, which others ask for by name.
MODULES = """crc32c_generic crc32c_intel virtio_pci virtio_net virtio_console ib_core iw_cm rdma_cm
    rdma_ucm ib_uverbs siw""".split()
PROGRAMS = """rping ucmatose ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_send_bw
    ib_send_lat rdma""".split()
# Of the kernel's iSCSI initiator, with a disk and its file system. They are loaded on demand.
DISK_MODULES = """crc32c_generic crct10dif_generic iscsi_tcp sd_mod ext4 xfs dm_multipath
    dm_service_time""".split()
# The programs of the initiator and of its disks, in packages of their own.
DISK_PACKAGES = """open-iscsi libopeniscsiusr libisns0 xfsprogs libinih1 liburcu8 dmsetup
    libdevmapper1.02.1""".split()
UNPACKED_PROGRAMS = """sbin/iscsid sbin/iscsiadm sbin/mkfs.xfs sbin/xfs_repair
    sbin/dmsetup""".split()
DISK_PROGRAMS = ["mkfs.ext4", "e2fsck"]
# Constants of siw that become parameters of the module, by file.
PARAMETERS = {
    "siw_main.c": [("mpa_crc_required", "bool"), ("mpa_version", "byte"), ("peer_to_peer", "bool")],
    "siw_cm.c": [("rtr_type", "ushort")],
}
CANNOT_FETCH = 3
# Debian's archive has only the newest kernel. Another one than this can be right, too.
TRIED = "6.1.0-56-amd64"


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def output(*command):
    return run(*command, stdout=subprocess.PIPE, text=True).stdout


def depends(package, pattern, options):
    """The first package that `package` depends on and that matches."""
    for line in output("apt-cache", *options, "depends", package).splitlines():
        word = line.split()[-1]
        if "Depends:" in line and re.fullmatch(pattern, word):
            return word
    raise LookupError(f"{package} depends on no {pattern}")


def download(folder, options):
    """Fetches the kernel, its headers and sources. Returns the kernel's release."""
    image = depends("linux-image-amd64", r"linux-image-\d.*", options)
    release = image.removeprefix("linux-image-")
    headers = f"linux-headers-{release}"
    common = depends(headers, r"linux-headers-.*common.*", options)
    kbuild = depends(headers, r"linux-kbuild-.*", options)
    source = kbuild.replace("kbuild", "source").split("+")[0]
    source = re.sub(r"(linux-source-\d+\.\d+).*", r"\1", source)
    packages = [image, headers, common, kbuild, source, "busybox-static", *DISK_PACKAGES]
    run("apt-get", "-qq", *options, "download", *packages, cwd=folder)
    return release


def download_disks(folder, options):
    """Fetches the packages of the initiator and its disks."""
    run("apt-get", "-qq", *options, "download", *DISK_PACKAGES, cwd=folder)


def fetch(target):
    """The kernel, its headers, siw's sources and the initiator, unpacked in `target`/packages."""
    packages = target / "packages"
    if (packages / "release").exists():
        # Packages that an earlier version of this program has fetched lack what came later.
        if not all((packages / "root" / name).exists() for name in UNPACKED_PROGRAMS):
            unpack(target, packages, download_disks)
        return
    folder = target / "packages.new"
    shutil.rmtree(folder, ignore_errors=True)
    release = unpack(target, folder, download)
    unpack_source(folder)
    (folder / "release").write_text(release)
    shutil.rmtree(target / "work", ignore_errors=True)
    (target / "kernel").unlink(missing_ok=True)
    shutil.rmtree(packages, ignore_errors=True)
    folder.rename(packages)


def unpack(target, folder, download):
    """Unpacks what `download` fetches in `folder`/root. Returns what it does."""
    debs, lists = folder / "debs", target / "lists"
    shutil.rmtree(debs, ignore_errors=True)
    debs.mkdir(parents=True)
    options = ["-o", "APT::Sandbox::User=root"]
    try:
        try:
            fetched = download(debs, options)
        except (subprocess.CalledProcessError, LookupError):
            # This machine's lists of packages may be missing or old. They are left as they are.
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            options += ["-o", f"Dir::State::lists={lists}", "-o", "Dir::Cache::pkgcache="]
            options += ["-o", "Dir::Cache::srcpkgcache="]
            subprocess.run(["apt-get", "-qq", *options, "update"])
            fetched = download(debs, options)
    except (subprocess.CalledProcessError, LookupError, OSError) as error:
        print(f"siw: the kernel's packages cannot be fetched: {error}", file=sys.stderr)
        sys.exit(CANNOT_FETCH)
    finally:
        shutil.rmtree(lists, ignore_errors=True)
    for deb in debs.iterdir():
        run("dpkg", "-x", deb, folder / "root")
    shutil.rmtree(debs)
    return fetched


def unpack_source(folder):
    """siw's sources, of the archive with the kernel's."""
    archive = next((folder / "root/usr/src").glob("linux-source-*.tar.xz"))
    siw = folder / "siw"
    siw.mkdir()
    with tarfile.open(archive, "r|xz") as sources:
        for member in sources:
            path = pathlib.PurePath(member.name)
            if path.parent.match("drivers/infiniband/sw/siw") and member.isfile():
                (siw / path.name).write_bytes(sources.extractfile(member).read())
            elif (siw / "siw_verbs.h").exists():
                break  # the last of them
    archive.unlink()


def edit(path, *changes):
    """Replaces each text, which must be there as often as said."""
    text = path.read_text()
    for old, new, count in changes:
        if text.count(old) != count:
            sys.exit(f"siw: {path.name} has {old!r} {text.count(old)} times, not {count}")
        text = text.replace(old, new)
    path.write_text(text)


def compile_module(packages, siw, release):
    """siw.ko, with parameters, and without two defects of its own."""
    root = packages / "root"
    shutil.rmtree(siw, ignore_errors=True)
    shutil.copytree(packages / "siw", siw)
    for name, parameters in PARAMETERS.items():
        for parameter, kind in parameters:
            # Declared in the header, too, if another file looks at it.
            for file in [siw / name, siw / "siw.h"]:
                text = re.sub(rf"(?m)^(.*)\bconst (\w+ {parameter}\b)", r"\1\2", file.read_text())
                if file.name == name:
                    text += "#include <linux/moduleparam.h>\n"
                    text += f"module_param({parameter}, {kind}, 0644);\n"
                file.write_text(text)
    # siw_accept() sends its reply before it takes over what the socket receives. An FPDU that comes
    # in between is not looked at before more bytes come, which may be never.
    edit(
        siw / "siw_cm.c",
        ("int siw_accept(", (HERE / "accept.c").read_text() + "\nint siw_accept(", 1),
        (
            "\tif (wait_for_peer_rts) {\n\t\tsiw_sk_assign_rtr_upcalls(cep);\n",
            "\tif (wait_for_peer_rts) {\n\t\tsiw_sk_assign_rtr_upcalls(cep);\n"
            "\t\tlook_at_what_came(cep);\n",
            1,
        ),
        (
            "IW_CM_EVENT_ESTABLISHED, 0);\n\t\tif (rv)\n\t\t\tgoto error;\n",
            "IW_CM_EVENT_ESTABLISHED, 0);\n\t\tif (rv)\n\t\t\tgoto error;\n"
            "\t\tlook_at_what_came(cep);\n",
            1,
        ),
    )
    # Where TCP cuts the padding and the CRC behind a frame, siw puts the second part over the first
    # and takes the frame for a damaged one.
    edit(
        siw / "siw_qp_rx.c",
        (
            "\tskb_copy_bits(skb, srx->skb_offset, tbuf, avail);\n",
            "\tskb_copy_bits(skb, srx->skb_offset,\n"
            "\t\t      tbuf + srx->pad + MPA_CRC_SIZE - srx->fpdu_part_rem, avail);\n",
            1,
        ),
    )
    headers = root / f"usr/src/linux-headers-{release}"
    makefile = headers / "Makefile"
    text = makefile.read_text()
    text = re.sub(r"(?m)^include \S*/usr/src/", f"include {root}/usr/src/", text)
    makefile.write_text(text)
    made = subprocess.run(
        ["make", "-s", "-C", headers, f"M={siw}", "CONFIG_RDMA_SIW=m", "modules"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    if made.returncode:
        sys.exit("siw: the module does not compile:\n" + made.stdout[-4000:])
    target = root / f"lib/modules/{release}/extra"
    target.mkdir(exist_ok=True)
    run("strip", "-g", siw / "siw.ko", "-o", target / "siw.ko")


def unpack_kernel(image, target):
    """The ELF file inside a bzImage, which QEMU can start without unpacking it in the guest."""
    data = image.read_bytes()
    start = ((data[0x1F1] or 4) + 1) * 512 + struct.unpack_from("<I", data, 0x248)[0]
    payload = data[start : start + struct.unpack_from("<I", data, 0x24C)[0]]
    if payload[:6] != b"\xfd7zXZ\0":
        sys.exit(f"siw: {image.name} is packed in an unknown way, {payload[:6]!r}")
    target.write_bytes(lzma.LZMADecompressor().decompress(payload))


class Archive:
    """A cpio archive in the format that the kernel takes."""

    def __init__(self):
        self.data = bytearray()
        self.paths = set()
        self.number = 0

    def add(self, path, mode, content=b"", device=(0, 0)):
        parent = os.path.dirname(path)
        if parent and parent not in self.paths:
            self.add(parent, stat.S_IFDIR | 0o755)
        self.paths.add(path)
        self.number += 1
        name = path.encode() + b"\0"
        fields = [self.number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0]
        self.data += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        self.data += bytes(-len(self.data) % 4) + content
        self.data += bytes(-len(self.data) % 4)

    def file(self, path, source, mode=0o755):
        self.add(path, stat.S_IFREG | mode, pathlib.Path(source).read_bytes())

    def link(self, path, to):
        self.add(path, stat.S_IFLNK | 0o777, to.encode())

    def finish(self):
        self.add("TRAILER!!!", 0)
        return bytes(self.data)


def modules_needed(folder, names):
    """These modules and what they depend on, each behind what it needs."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        name, _, rest = line.partition(":")
        needs[name] = rest.split()
    path = {pathlib.PurePath(name).name.split(".ko")[0].replace("-", "_"): name for name in needs}
    if "siw" not in path:
        sys.exit("siw: depmod does not know the module")
    wanted = [path[name] for name in names if name in path]
    order = []

    def take(name):
        for other in needs[name]:
            take(other)
        if name not in order:
            order.append(name)

    for name in wanted:
        take(name)
    return order


def initramfs(root, release, programs):
    archive = Archive()
    busybox = root / "bin/busybox"
    archive.file("bin/busybox", busybox)
    for applet in output(busybox, "--list").split():
        if applet != "busybox":
            archive.link(f"bin/{applet}", "busybox")
    archive.file("init", HERE / "init")
    binaries = []
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is None:
            sys.exit(f"siw: {program} is not installed")
        archive.file(f"usr/bin/{program}", found)
        binaries.append(found)
    for program in programs:
        archive.file(f"usr/bin/{pathlib.Path(program).name}", program)
        binaries.append(program)
    archive.file("etc/libibverbs.d/siw.driver", "/etc/libibverbs.d/siw.driver", 0o644)
    provider = next((LIBRARIES / "libibverbs").glob("libsiw-rdmav*.so"))
    archive.file(str(provider)[1:], provider)
    # The C library's threads load this one at the end of a thread.
    libraries = {str(LIBRARIES / "libgcc_s.so.1")}
    for binary in [*binaries, provider]:
        libraries.update(re.findall(r"(/\S+) \(0x", output("ldd", binary)))
    libraries |= initiator(archive, root)
    for library in libraries:
        # Those of unpacked packages go where they would be installed.
        archive.file(library.removeprefix(str(root))[1:], library)
    archive.add("etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    for name in ["dev", "proc", "sys", "tmp", "run", "root"]:
        archive.add(name, stat.S_IFDIR | 0o755)
    modules = root / f"lib/modules/{release}"
    run(busybox, "depmod", "-b", root, release, stderr=subprocess.DEVNULL)
    kinds = {"etc/modules": MODULES, "etc/modules.disk": DISK_MODULES}
    for file, kind in kinds.items():
        needed = modules_needed(modules, kind)
        for name in needed:
            if f"lib/modules/{name}" not in archive.paths:
                archive.file(f"lib/modules/{name}", modules / name, 0o644)
        names = "".join(f"/lib/modules/{name}\n" for name in needed)
        archive.add(file, stat.S_IFREG | 0o644, names.encode())
    return archive.finish()


def initiator(archive, root):
    """Adds the iSCSI initiator, if this machine has what it needs. Returns its libraries."""
    environment = os.environ | {"LD_LIBRARY_PATH": f"{root}{LIBRARIES}"}
    programs = [(name, root / name) for name in UNPACKED_PROGRAMS]
    programs += [(f"sbin/{name}", shutil.which(name)) for name in DISK_PROGRAMS]
    libraries = set()
    for _, path in programs:
        if path is None or not os.path.exists(path):
            return set()
        needed = run("ldd", path, stdout=subprocess.PIPE, text=True, env=environment).stdout
        if "not found" in needed:
            return set()
        libraries.update(re.findall(r"(/\S+) \(0x", needed))
    for name, path in programs:
        archive.file(name, path)
    archive.file("etc/iscsi/iscsid.conf", root / "etc/iscsi/iscsid.conf", 0o644)
    return libraries


def digest(files):
    total = hashlib.sha256()
    for file in sorted(str(file) for file in files):
        total.update(pathlib.Path(file).read_bytes())
    return total.hexdigest()


def make(target, programs):
    """The machine, of the packages that have been fetched."""
    packages, made, kernel = target / "packages", target / "made", target / "kernel"
    release = (packages / "release").read_text()
    sources = [HERE / name for name in ["build.py", "accept.c", "init"]]
    here = [shutil.which(name) for name in [*PROGRAMS, *DISK_PROGRAMS]]
    unpacked = [packages / "root" / name for name in UNPACKED_PROGRAMS]
    parts = [path for path in [*here, *unpacked] if path is not None and os.path.exists(path)]
    state = digest([*sources, packages / "release", *programs, *parts])
    if made.exists() and made.read_text() == state:
        return
    made.unlink(missing_ok=True)
    built = digest([HERE / "build.py", HERE / "accept.c", packages / "release"])
    if not kernel.exists() or kernel.read_text() != built:
        kernel.unlink(missing_ok=True)
        compile_module(packages, target / "work", release)
        unpack_kernel(packages / f"root/boot/vmlinuz-{release}", target / "vmlinux")
        kernel.write_text(built)
    (target / "initramfs").write_bytes(initramfs(packages / "root", release, programs))
    made.write_text(state)


def main():
    fetches = sys.argv[1] == "--fetch"
    target, *programs = sys.argv[2:] if fetches else sys.argv[1:]
    target = pathlib.Path(target).resolve()
    target.mkdir(parents=True, exist_ok=True)
    lock = open(target / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if fetches:
        return fetch(target)
    if not (target / "packages").exists():
        why = target.parent / "fetched/siw.failed"
        why = why.read_text().strip() if why.exists() else "scripts/fetch has not run"
        print(f"siw: the kernel's packages were not fetched: {why}", file=sys.stderr)
        sys.exit(CANNOT_FETCH)
    try:
        make(target, programs)
    except (Exception, SystemExit) as error:
        release = (target / "packages/release").read_text()
        if release == TRIED:
            raise
        print(f"siw: not for the kernel {release}, only for {TRIED}: {error}", file=sys.stderr)
        sys.exit(CANNOT_FETCH)


main()
